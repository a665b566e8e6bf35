"""Each exit code means one thing, and a script may rely on it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import (
    LOWTIDE,
    Outcome,
    assert_nothing_half_written,
    bytes_of,
    call,
    killed_on_failure,
    lowtide,
)


def interrupt_at_start(*arguments: str | Path, number: signal.Signals) -> Outcome:
    """Start a run, send the signal as soon as it speaks, and wait for its end."""
    started = subprocess.Popen(
        [*LOWTIDE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with killed_on_failure(started) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    return Outcome(code=process.returncode, out=out, err=first + err)


def test_0_when_it_is_done(corpus: Path, tmp_path: Path) -> None:
    done = lowtide("tokenize", corpus, "--out", tmp_path / "out")
    assert done.code == 0
    assert lowtide("verify", tmp_path / "out").code == 0


def test_1_when_the_work_failed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\xffbad")
    failed = lowtide("tokenize", tmp_path / "a.txt", "--out", tmp_path / "out")
    assert failed.code == 1
    assert "a.txt" in failed.problem
    assert_nothing_half_written(tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["tokenize"], "missing argument 'INPUT...'"),
        (["tokenize", "a.txt"], "missing option '--out'"),
        (["tokenise"], "no such command 'tokenise'"),
        (["inspect", "--colour"], "no such option '--colour'"),
        (["export", "d", "--to", "zip", "--out", "e"], "'zip' is not one of"),
        (["export", "d", "--to", "npy", "--out", "e", "--step", "3"], "--step has no meaning"),
        (
            ["export", "d", "--to", "huggingface", "--out", "e", "--eot", "end"],
            "--eot has no meaning",
        ),
        (["tokenize", "a.txt", "--out", "o", "--shard-tokens", "many"], "'many' is not a count"),
        (["tokenize", "nowhere.txt", "--out", "o"], "nowhere.txt does not exist"),
        (["tokenize", "a.txt", "--out", "o", "--memory", "1 apple"], "is not a size"),
        (["tokenize", "a.txt", "--out", "o", "--val", "2"], "val cannot be 2.0"),
        (["tokenize", "a.txt", "--out", "o", "--workers", "0"], "--workers 0"),
        (["tokenize", "a.txt", "--out", "o", "--tokenizer", "gpt7"], "'gpt7'"),
        (["inspect", "nowhere"], "nowhere does not exist"),
        (["verify", "nowhere"], "nowhere does not exist"),
    ],
)
def test_2_when_the_command_is_wrong(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("words")
    refused = call(capsys, *arguments)
    assert refused.code == 2
    assert problem in refused.problem
    assert refused.hint
    assert refused.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_2_in_a_process_of_its_own(tmp_path: Path) -> None:
    refused = lowtide("tokenize", cwd=tmp_path)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == (
        "error: missing argument 'INPUT...'\n"
        "hint: for example `lowtide tokenize corpus --out tokens`; see `lowtide tokenize --help`\n"
    )


def test_3_when_it_does_not_fit_and_the_remedy_works(corpus: Path, tmp_path: Path) -> None:
    command = ["tokenize", corpus, "--out", tmp_path / "out"]
    refused = lowtide(*command, "--memory", "1MiB")
    assert refused.code == 3
    assert not (tmp_path / "out").exists()
    assert refused.advice[0] == "--memory"
    assert lowtide(*command, *refused.advice).code == 0
    too_much = lowtide(*command, "--memory", "99TiB")
    assert too_much.code == 3
    assert "99TiB" in too_much.problem


def test_4_when_data_is_not_what_it_was(dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(dataset, tmp_path / "copy")
    shard = copy / "train_000000.npy"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    found = lowtide("verify", copy)
    assert found.code == 4
    assert "train_000000.npy" in found.out
    assert lowtide("verify", copy, "--json").json["sound"] is False


def test_75_when_it_was_asked_to_end(corpus: Path, tmp_path: Path) -> None:
    command = ("tokenize", corpus, "--out", tmp_path / "out")
    stopped = interrupt_at_start(*command, number=signal.SIGTERM)
    assert stopped.code == 75
    assert "run the same command again" in stopped.hint
    assert_nothing_half_written(tmp_path / "out")


def test_130_after_ctrl_c_and_the_same_command_finishes(
    corpus: Path, dataset: Path, tmp_path: Path
) -> None:
    command = ("tokenize", corpus, "--separator", "line", "--out", tmp_path / "out")
    stopped = interrupt_at_start(*command, number=signal.SIGINT)
    assert stopped.code == 130
    assert "run the same command again" in stopped.hint
    assert_nothing_half_written(tmp_path / "out")
    finished = lowtide(*command)
    assert finished.code == 0
    # A slow machine stops before the first block.
    has_begun = "after 0 tokens" not in stopped.problem
    assert ("resuming" in finished.err) == has_begun
    assert bytes_of(tmp_path / "out") == bytes_of(dataset)


@pytest.mark.skipif(sys.platform != "linux", reason="a device that is always full")
def test_1_when_nobody_can_take_the_result_and_it_is_no_fault_of_ours(dataset: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*LOWTIDE, "inspect", str(dataset), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "fault of lowtide" not in done.stderr


INTERRUPTED = """
import atexit, os, signal, sys

def interrupt(*_):
    os.kill(os.getpid(), number)

number = int(sys.argv.pop(1))

class AtImport:
    def find_spec(self, name, path, target=None):
        if name == "lowtide.cli.tokenize":
            interrupt()

class AtTeardown:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, number)

moment = sys.argv.pop(1)
if moment == "import":
    sys.meta_path.insert(0, AtImport())
elif moment == "exit":
    atexit.register(interrupt)
else:
    late = AtTeardown()
from lowtide.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("number", "moment", "code"),
    [
        (signal.SIGINT, "import", -signal.SIGINT),  # which shells show as 130
        (signal.SIGINT, "exit", -signal.SIGINT),
        (signal.SIGINT, "teardown", -signal.SIGINT),
        (signal.SIGTERM, "import", 75),
        (signal.SIGTERM, "exit", 0),  # the command is done
        (signal.SIGTERM, "teardown", 0),
    ],
)
def test_a_signal_at_the_very_start_or_end_leaves_no_traceback(
    number: int, moment: str, code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(int(number)), moment, "--version"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, b"")


TERMINATED = """
import os, signal, sys
import lowtide.stages.compare_with_input as compare
import click
where = sys.argv.pop(1)

def terminate(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)

if where == "work":
    compare.fingerprint_file = terminate
else:
    click.echo = terminate
from lowtide.__main__ import main
main()
"""


@pytest.mark.parametrize("where", ["work", "end"])
def test_75_for_a_sigterm_that_nobody_asks_for(where: str, dataset: Path) -> None:
    """`verify` handles errors of its inputs, and must not take a stop for one."""
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, where, "verify", dataset if where == "work" else "gone"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_1_for_a_file_system_without_locks(
    number: int,
    capsys: pytest.CaptureFixture[str],
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    refused = call(capsys, "tokenize", corpus, "--out", tmp_path / "out")
    assert refused.code == 1
    assert errno.errorcode[number] in refused.problem
    assert "locks" in refused.hint


def test_1_for_what_only_others_may_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error number itself: root may read everything."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "mine"))

    monkeypatch.setattr("lowtide.guard.doctor.examine.examine_machine", refuse)
    refused = call(capsys, "doctor")
    assert refused.code == 1
    assert "EACCES" in refused.problem
    assert "fault" not in refused.hint
