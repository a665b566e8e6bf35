"""`lowtide doctor` says what is true of this machine, exits with 1 only for a problem, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lowtide.guard.doctor.check_software import is_installed
from lowtide.guard.doctor.checks import advice, ok, problem
from lowtide.show.checks import plain_line, summary
from tests.commands import LOWTIDE, Outcome, call, lowtide_process

Capsys = pytest.CaptureFixture[str]
SECONDS = 300
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits and /dev/shm are Linux's")
TORCH = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")
PROBE = """
import json, sys
from lowtide.cli.main import main
try:
    main(["doctor", "--quick", "--json"])
except SystemExit as left:
    print(json.dumps(list(sys.modules)))
"""


def lines(told: Outcome) -> dict[str, dict[str, str]]:
    checks = told.json["checks"]
    assert isinstance(checks, list)
    return {check["name"]: check for check in checks}


def test_it_loads_neither_torch_nor_numpy_nor_pyarrow() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert not loaded & {"torch", "numpy", "pyarrow", "rich", "tokenizers", "gigatoken"}


def test_json_is_one_object_and_all_but_ok_have_a_remedy(capsys: Capsys) -> None:
    told = call(capsys, "doctor", "--quick", "--json")
    checks = lines(told).values()
    levels = [check["level"] for check in checks]
    assert levels == sorted(levels, key=["problem", "advice", "ok"].index)
    assert all(bool(check["remedy"]) == (check["level"] != "ok") for check in checks)
    assert told.json["problems"] == levels.count("problem")
    assert told.code == (1 if "problem" in levels else 0)


def test_every_line_is_explained_on_the_page(capsys: Capsys) -> None:
    page = (Path(__file__).parents[2] / "docs/doctor.md").read_text()
    for name in lines(call(capsys, "doctor", "--quick", "--json")):
        assert f"| {name} |" in page or name.startswith("ulimit "), name


def test_quick_says_what_it_skipped(capsys: Capsys) -> None:
    found = lines(call(capsys, "doctor", "--quick", "--json"))
    assert found["write speed"]["finding"] == "not tried: `--quick`"


def test_elsewhere_than_on_a_terminal_each_check_is_a_line(capsys: Capsys) -> None:
    told = call(capsys, "doctor", "--quick").out.splitlines()
    assert {line.split()[0] for line in told[:-1]} <= {"problem", "advice", "ok"}
    assert told[-1].endswith(" ok")
    assert "\x1b" not in "".join(told)


@TORCH
@pytest.mark.slow
def test_the_whole_examination_measures_the_disk_and_tries_torch(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    here = {"TMPDIR": str(tmp_path / "scratch"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(  # on a busy machine compiling takes minutes
        [*LOWTIDE, "doctor", "--json", "--path", str(tmp_path / "not/yet/made")],
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        check=False,
    )
    told = Outcome(code=done.returncode, out=done.stdout, err=done.stderr)
    found = lines(told)
    assert "(measured: " in found["write speed"]["finding"] or "tmpfs" in str(found["file system"])
    assert found["torch"]["level"] == "ok"
    assert found["torch.compile"]["finding"].startswith(("works for cpu in", "fails for cpu"))
    assert told.code == (1 if told.json["problems"] else 0)
    assert told.err == ""
    assert [path.name for path in tmp_path.rglob("*")] == ["scratch"]


@LINUX
def test_1_when_a_limit_breaks_mapping_and_the_advice_works() -> None:
    import resource

    def bounded() -> None:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, hard))

    if resource.getrlimit(resource.RLIMIT_AS) != (resource.RLIM_INFINITY,) * 2:
        pytest.skip("this shell has a limit of its own")
    told = lowtide_process("doctor", "--quick", "--json", before=bounded)
    assert told.code == 1
    bite = lines(told)["ulimit -v"]
    assert bite["level"] == "problem"
    remedy = bite["remedy"].split("`")[1]
    again = subprocess.run(
        ["sh", "-c", f'{remedy} && exec "$@"', "sh", *LOWTIDE, "doctor", "--quick", "--json"],
        preexec_fn=bounded,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ulimit -v" not in again.stdout


@LINUX
def test_temporary_files_in_memory_are_told_and_the_advice_works() -> None:
    before = lines(lowtide_process("doctor", "--quick", "--json", env={"TMPDIR": "/dev/shm"}))
    bite = before["temporary files"]
    if bite["level"] == "ok" or "/var/tmp" not in bite["remedy"]:
        pytest.skip("/dev/shm is not a tmpfs here, or no folder on a disk is known")
    name, _, value = bite["remedy"].split("`")[1].removeprefix("export ").partition("=")
    after = lines(lowtide_process("doctor", "--quick", "--json", env={name: value}))
    assert after["temporary files"]["level"] == "ok"


@LINUX
def test_a_folder_in_memory_is_advised_against_and_not_written_to(capsys: Capsys) -> None:
    found = lines(call(capsys, "doctor", "--quick", "--json", "--path", "/dev/shm/not/yet"))
    if "tmpfs" not in found["file system"]["finding"]:
        pytest.skip("/dev/shm is not a tmpfs here")
    assert found["file system"]["level"] == "advice"
    assert not Path("/dev/shm/not").exists()


def test_a_slurm_variable_that_is_no_number_is_a_problem_not_a_crash() -> None:
    wrong = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "lots"}
    told = lowtide_process("doctor", "--quick", "--json", env=wrong)
    assert told.code == 1
    assert lines(told)["Slurm"]["remedy"] == "correct or unset SLURM_MEM_PER_NODE"


@pytest.mark.slow
@LINUX
@TORCH
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupted_or_killed_it_leaves_no_file_and_no_process(
    tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*LOWTIDE, "doctor", "--path", str(tmp_path)],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as doctor:
        wait_until(lambda: [*tmp_path.glob("lowtide-doctor-*")] != [])
        wait_until(lambda: children_that_name(tmp_path) != [])
        doctor.send_signal(sent)
        assert doctor.wait(SECONDS) == code
    wait_until(lambda: children_that_name(tmp_path) == [])
    wait_until(lambda: list(tmp_path.iterdir()) == [])


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def children_that_name(folder: Path) -> list[int]:
    """Processes that were given a folder of the doctor's below this one."""
    mark, found = f"{folder}/lowtide-doctor-".encode(), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@LINUX
def test_in_a_folder_that_was_removed_it_says_so_and_the_advice_works(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def inside(*flags: str) -> subprocess.CompletedProcess[str]:
        script = 'cd "$0" && rmdir "$0"; exec "$@"'
        gone.mkdir(exist_ok=True)
        command = ["sh", "-c", script, str(gone), *LOWTIDE, "doctor", "--quick", *flags]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    told = inside()
    assert told.returncode == 2
    assert told.stderr.startswith("error: the current folder no longer exists\n")
    assert "disk space" in inside("--path", str(tmp_path)).stdout


@LINUX
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_output_that_takes_nothing_is_no_fault_of_ours(flags: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [*LOWTIDE, "doctor", "--quick", *flags],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write to standard output: no space left")
    assert "fault of lowtide" not in done.stderr


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_file_is_no_folder(capsys: Capsys, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    refused = call(capsys, "doctor", "--quick", "--path", tmp_path / "file" / below)
    assert refused.code == 2
    assert refused.problem == f"{tmp_path / 'file'} is a file, not a folder"


@LINUX
def test_a_path_that_leads_to_itself_is_refused(capsys: Capsys, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert call(capsys, "doctor", "--quick", "--path", tmp_path / "loop" / "x").code == 2


def test_a_folder_for_temporary_files_that_is_not_there_is_told(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "tmp"
    bite = lines(lowtide_process("doctor", "--quick", "--json", env={"TMPDIR": str(missing)}))[
        "temporary files"
    ]
    assert bite["level"] == "advice"
    assert f"TMPDIR is {missing}, which is not there" in bite["finding"]
    subprocess.run(["sh", "-c", bite["remedy"].split("`")[1]], check=True)
    after = lines(lowtide_process("doctor", "--quick", "--json", env={"TMPDIR": str(missing)}))
    assert "which is not there" not in after["temporary files"]["finding"]


@LINUX
def test_a_folder_that_takes_no_file_is_a_problem_even_when_quick(capsys: Capsys) -> None:
    told = call(capsys, "doctor", "--quick", "--json", "--path", "/sys")  # not even root's to write
    bite = lines(told)["write speed"]
    assert bite["level"] == "problem"
    assert bite["finding"].startswith("/sys cannot be written: ")


def test_quick_leaves_nothing_in_the_folder(capsys: Capsys, tmp_path: Path) -> None:
    call(capsys, "doctor", "--quick", "--path", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_summary_counts() -> None:
    checks = [problem("a", "x", "y"), advice("b", "x", "y"), advice("c", "x", "y"), ok("d", "x")]
    assert summary(checks) == "1 problem, 2 pieces of advice, 1 ok"
    assert summary(checks[3:]) == "no problem, no advice, 1 ok"


def test_a_name_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in plain_line(ok("disk", "at /tmp/\x1b[2J\nproblem x"))
    assert "\n" not in plain_line(ok("disk", "at /tmp/\x1b[2J\nproblem x"))


SHOW = """
from lowtide.guard.doctor.checks import advice, ok, problem
from lowtide.show.checks import show_checks
remedy = "start it with `--shm-size=4g`; " + "and so on " * 20
show_checks([problem("shared memory", "word " * 40, remedy), ok("disk", "fine [red]")], as_json=False)
"""


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX's")
@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_of_80_columns_holds_the_table_and_colour_adds_no_word(colour: bool) -> None:
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "NO_COLOR": "1"}
    if colour:
        del environ["NO_COLOR"]
    shown = on_a_terminal([sys.executable, "-c", SHOW], environ)
    assert ("\x1b[" in shown.replace("\x1b[1m", "").replace("\x1b[0m", "")) == colour
    plain = unstyled(shown)
    assert max(map(len, plain.splitlines())) <= 80
    assert "problem  shared memory  word" in plain
    assert "remedy: start it with `--shm-size=4g`" in plain
    assert "ok       disk           fine [red]" in plain
    assert "1 problem, no advice, 1 ok" in plain


def unstyled(text: str) -> str:
    import click

    return click.unstyle(text).replace("\r", "")


def on_a_terminal(command: list[str], environ: dict[str, str]) -> str:
    """What the command writes when its stdout is a terminal."""
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=theirs, env=environ) as child:
        os.close(theirs)
        pieces = []
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux's way to say that the other side has closed
                break
            if not piece:
                break
            pieces.append(piece)
        child.wait()
    os.close(ours)
    return b"".join(pieces).decode()
