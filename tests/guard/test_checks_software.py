"""Libraries, cards and torch: what is missing, old or broken is told with the command that mends it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lowtide.guard.doctor.check_gpu import (
    CompileFacts,
    DriverAnswer,
    TorchFacts,
    TorchReading,
    ask_torch,
    check_gpu,
    judge_compile,
    judge_torch,
    parse_gpus,
    read_answers,
    read_gpus,
)
from lowtide.guard.doctor.check_software import (
    check_extras,
    check_libraries,
    check_native,
    is_installed,
    libraries_of,
    read_libraries,
    satisfies,
)
from lowtide.guard.doctor.checks import Check, Examination
from lowtide.memory.reading import GpuReading
from lowtide.units import GIB, MIB

NEEDED = [
    "click<9,>=8.2",
    "gigatoken==0.10.0",
    'torch>=2.8; extra == "train"',
    'safetensors>=0.5; extra == "train"',
    'wandb>=0.19; extra == "wandb"',
    'mypy>=1.14; extra == "test"',
]
ALL = {"click": "8.5.1", "gigatoken": "0.10.0", "torch": "2.13.0+cpu", "safetensors": "0.8.0"}
CARD = GpuReading(index=0, name="RTX 4070", total_bytes=12 * GIB, used_bytes=400 * MIB)


def seen(version: Callable[[str], str | None]) -> Examination:
    """A machine with these releases."""
    return Examination(libraries=libraries_of(NEEDED, version))


def gpus(answer: DriverAnswer, **known: object) -> list[Check]:
    """What is said of these cards."""
    return check_gpu(Examination(**{"gpus": answer, **known}))  # type: ignore[arg-type]


needs_torch = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("8.5.1", "<9,>=8.2", True),
        ("9.0", "<9,>=8.2", False),
        ("8.1.9", "<9,>=8.2", False),
        ("0.10.0", "==0.10.0", True),
        ("0.10", "==0.10.0", True),
        ("0.9.9", ">=0.10", False),
        ("2.13.0+cpu", "==2.13.0", True),
        ("2024.11.6", ">=2024.11.6", True),
        ("1.0", "", True),
    ],
)
def test_releases_are_compared_as_numbers(version: str, wanted: str, fits: bool) -> None:
    assert satisfies(version, wanted) == fits


def test_what_fits_is_one_line() -> None:
    libraries = libraries_of(NEEDED, ALL.get)
    (check,) = check_libraries(Examination(libraries=libraries))
    assert (check.level, check.finding) == ("ok", "click 8.5.1, gigatoken 0.10.0")
    (extras,) = check_extras(Examination(libraries=libraries))
    assert extras.level == "ok"
    assert "torch 2.13.0+cpu" in extras.finding
    assert "not installed, rarely needed: lowtide[wandb]" in extras.finding
    assert "mypy" not in extras.finding


def test_another_release_and_a_missing_library_are_problems_that_pip_mends() -> None:
    here = {**ALL, "gigatoken": "0.11.0"}
    del here["click"]
    missing, other, rest = check_libraries(seen(here.get))
    assert (missing.level, missing.remedy) == ("problem", "`pip install 'click<9,>=8.2'`")
    assert other.finding == "gigatoken 0.11.0 is here, and gigatoken==0.10.0 is needed"
    assert other.remedy == "`pip install 'gigatoken==0.10.0'`"
    assert rest.finding == ""


def test_without_torch_the_extra_is_advised() -> None:
    here = {name: version for name, version in ALL.items() if name != "torch"}
    advised, rest = check_extras(seen(here.get))
    assert (advised.level, advised.remedy) == ("advice", "`pip install 'lowtide[train]'`")
    assert rest.level == "ok"


def test_an_old_torch_is_a_problem() -> None:
    checks = check_extras(seen({**ALL, "torch": "2.1.0"}.get))
    assert checks[0].level == "problem"
    assert checks[0].finding == "torch 2.1.0 is here, and torch>=2.8 is needed"


def test_this_installation_is_whole() -> None:
    libraries = read_libraries()
    assert {"numpy", "torch", "pyarrow"} <= {library.name for library in libraries}
    assert [check.level for check in check_libraries(Examination(libraries=libraries))] == ["ok"]
    assert check_native(Examination()).level == "ok"


def driver(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `nvidia-smi` that says what the script says."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder) + os.pathsep + "/bin")


@pytest.mark.skipif(os.name != "posix", reason="the driver's stand-in is a shell script")
def test_the_driver_is_asked_and_its_silence_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(tmp_path, "echo '570.86, 12282, 431, NVIDIA GeForce RTX 4070'", monkeypatch)
    (check,) = gpus(read_gpus(tmp_path))
    assert check.level == "ok"
    assert check.finding == "NVIDIA GeForce RTX 4070, 12.0 GiB, driver 570.86"
    driver(
        tmp_path, "echo 'Failed to initialize NVML: Driver/library mismatch'; exit 18", monkeypatch
    )
    (check,) = gpus(read_gpus(tmp_path))
    assert check.level == "problem"
    assert "mismatch" in check.finding


def test_lines_that_are_no_cards_are_passed_over() -> None:
    assert parse_gpus("No devices were found\n550.1, [N/A], [N/A], GB10\n") == []


def test_no_card_is_fine_and_a_hidden_or_lost_one_is_told(tmp_path: Path) -> None:
    (check,) = gpus(DriverAnswer())
    assert check.level == "ok"
    (check,) = gpus(DriverAnswer(cards=(CARD,)), environ={"CUDA_VISIBLE_DEVICES": ""})
    assert (check.level, check.remedy) == ("advice", "`unset CUDA_VISIBLE_DEVICES`")
    (check,) = gpus(DriverAnswer(on_the_bus=True), container="Docker")
    assert "--gpus all" in str(check.remedy)
    (check,) = gpus(DriverAnswer(driver_loaded=True))
    assert "no nvidia-smi" in check.finding


def test_a_card_on_the_bus_is_seen_without_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x040300\n")  # its sound
    assert not read_gpus(tmp_path).on_the_bus
    (device / "class").write_text("0x030000\n")
    assert read_gpus(tmp_path).on_the_bus


def test_a_card_that_others_hold_is_told() -> None:
    held = GpuReading(index=1, name="A", total_bytes=12 * GIB, used_bytes=4 * GIB)
    checks = gpus(DriverAnswer(cards=(CARD, held)))
    assert [check.level for check in checks] == ["ok", "advice"]


def facts(*, cuda: str | None, sees_card: bool, problem: str | None = None) -> TorchReading:
    torch = TorchFacts(
        version="2.13.0", cuda=cuda, hip=None, sees_card=sees_card, problem=problem, peak_bytes=None
    )
    return TorchReading(torch=torch, compiled=(), end=None)


@pytest.mark.parametrize(
    ("reading", "card_here", "level"),
    [
        (facts(cuda=None, sees_card=False), False, "ok"),
        (facts(cuda="12.8", sees_card=False, problem="no NVIDIA driver"), False, "ok"),
        (facts(cuda="12.8", sees_card=True), True, "ok"),
        (facts(cuda=None, sees_card=False), True, "problem"),
        (facts(cuda="12.8", sees_card=False, problem="the driver is too old"), True, "problem"),
        (facts(cuda="12.8", sees_card=True, problem="no kernel image"), True, "problem"),
        (TorchReading(torch=None, compiled=(), end="ImportError: libcudnn"), False, "problem"),
    ],
)
def test_torch_is_wrong_only_where_a_card_is_left_unused(
    reading: TorchReading, card_here: bool, level: str
) -> None:
    assert judge_torch(reading, card_here=card_here).level == level


def compiled(device: str, problem: str | None) -> CompileFacts:
    return CompileFacts(device=device, seconds=2.0, problem=problem, peak_bytes=GIB)


@pytest.mark.parametrize(
    ("results", "end", "level", "told"),
    [
        ([("cpu", None)], None, "ok", "works for cpu in 2.0s"),
        ([("cuda", None), ("cpu", None)], None, "ok", "works for cuda in 2.0s and for cpu in 2.0s"),
        ([("cpu", "no compiler")], None, "advice", "fails for cpu: no compiler"),
        ([("cuda", None), ("cpu", "no compiler")], None, "advice", "fails for cpu"),
        ([("cuda", "no Python.h"), ("cpu", "x")], None, "problem", "fails for cuda: no Python.h"),
        ([], "no answer in 3m 00s", "problem", "fails for cuda: no answer"),
        ([("cuda", None)], "killed by signal 11", "advice", "fails for cpu: killed by signal 11"),
    ],
)
def test_compiling_is_wrong_only_on_a_card(
    results: list[tuple[str, str | None]], end: str | None, level: str, told: str
) -> None:
    torch = facts(cuda="12.8", sees_card=True).torch
    tried = tuple(compiled(device, problem) for device, problem in results)
    check = judge_compile(TorchReading(torch=torch, compiled=tried, end=end))
    assert check is not None
    assert check.level == level
    assert check.finding.startswith(told)


def test_what_libraries_print_is_not_taken_for_an_answer() -> None:
    said = (
        "W1116 no NUMA node\n"
        'lowtide: {"kind": "compile", "device": "cpu", "seconds": 1.5, "problem": null, "peak_bytes": 9}\n'
        "Segmentation fault"
    )
    reading = read_answers(said, -11, 60)
    assert reading.torch is None
    assert [one.device for one in reading.compiled] == ["cpu"]
    assert reading.end == "killed by signal 11"


@needs_torch
def test_a_child_that_takes_too_long_is_ended() -> None:
    reading = ask_torch(compiles=True, most_seconds=0.1)
    assert reading.end == "no answer in 0.1s"
    assert judge_torch(reading, card_here=False).level == "problem"
    assert judge_compile(reading) is None


@pytest.mark.slow
@needs_torch
def test_a_missing_compiler_is_found_out_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    reading = ask_torch(compiles=True)
    assert judge_torch(reading, card_here=False).level == "ok"
    check = judge_compile(reading)
    assert check is not None
    assert check.level == "advice", check
    assert "apt install g++" in str(check.remedy)
