"""What a plan is for: a card that is here, a card that is named, memory alone, or the CPU."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lowtide.errors import UsageError
from lowtide.plan.machine import CONTEXT_BYTES, choose_machine, parse_seen, visible_cards
from lowtide.units import GIB, MIB


def put_driver(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that answers as `nvidia-smi` does."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")


@pytest.mark.skipif(os.name != "posix", reason="the stand-in is a shell script")
def test_the_first_card_that_is_here_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_driver(
        tmp_path,
        "echo 'GPU-1a, NVIDIA GeForce RTX 4070, 12282, 431'; echo 'GPU-2b, Tesla T4, 15360, 0'",
        monkeypatch,
    )
    machine = choose_machine()
    assert machine.name == "RTX 4070"
    assert machine.device == "cuda"
    assert machine.total_bytes == 12282 * MIB
    assert machine.taken_bytes == 431 * MIB + CONTEXT_BYTES
    assert "one of 2" in machine.found


@pytest.mark.skipif(os.name != "posix", reason="the stand-in is a shell script")
@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "sleep 60"])
def test_without_a_card_the_cpu_is_planned_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr("lowtide.plan.machine._SECONDS_TO_ANSWER", 0.2)
    put_driver(tmp_path, script, monkeypatch)
    machine = choose_machine()
    assert machine.device == "cpu"
    assert machine.peak_source == "assumed"
    assert not machine.bfloat16


def test_a_card_that_is_in_no_table_still_has_its_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if os.name != "posix":
        pytest.skip("the stand-in is a shell script")
    put_driver(tmp_path, "echo 'GPU-3, NVIDIA GeForce RTX 9999, 65536, 0'", monkeypatch)
    machine = choose_machine()
    assert machine.total_bytes == 64 * GIB
    assert machine.peak_flops is None


def test_lines_that_say_nothing_are_passed_over() -> None:
    found = parse_seen("\nwarning: x\nGPU-1, T4, [N/A], 3\nGPU-2, T4, 15360, 3\nT4, 15360, 3\n")
    assert [(card.uuid, card.name) for card in found] == [("GPU-2", "T4")]


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (None, "abc"),
        ("1", "b"),
        ("2,0", "ca"),
        ("GPU-b", "b"),
        ("", ""),
        ("-1", ""),
        ("1,7,0", "b"),
        ("GPU-", ""),
    ],
)
def test_cards_that_the_environment_hides_are_not_seen(wanted: str | None, seen: str) -> None:
    cards = parse_seen("".join(f"GPU-{one}, T4, 15360, 3\n" for one in "abc"))
    found = [card.uuid[-1] for card in visible_cards(cards, wanted)]
    assert "".join(found) == seen


@pytest.mark.skipif(os.name != "posix", reason="the stand-in is a shell script")
def test_the_card_that_torch_will_see_is_planned_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "echo 'GPU-1a, NVIDIA GeForce RTX 4070, 12282, 9000'; echo 'GPU-2b, Tesla T4, 15360, 0'"
    put_driver(tmp_path, lines, monkeypatch)
    assert choose_machine(slurm={"CUDA_VISIBLE_DEVICES": "1"}).name == "T4"
    assert choose_machine(slurm={"CUDA_VISIBLE_DEVICES": ""}).device == "cpu"


def test_a_named_size_replaces_a_cards_own() -> None:
    assert choose_machine(gpu="H200", vram="12GiB").total_bytes == 12 * GIB
    assert choose_machine(vram="12GiB").total_bytes == 12 * GIB


def test_no_room_beside_cuda_is_refused() -> None:
    with pytest.raises(UsageError, match="no room"):
        choose_machine(vram="512MiB")
