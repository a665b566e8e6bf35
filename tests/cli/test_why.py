"""`lowtide why` answers at once, for people and for programs, and no file steers the terminal through it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.journal import LOG_NAME, Journal
from tests.commands import Outcome, call, lowtide_process

Capsys = pytest.CaptureFixture[str]
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total capacity of "
    "11.76 GiB of which 320.12 MiB is free. Including non-PyTorch memory, this process has 11.43 GiB"
    " memory in use."
)
LOG = f"""\
Overriding: batch_size = 8
block_size = 1024
defaulting to vocab_size of GPT-2 to 50304 (50257 rounded up for efficiency)
Traceback (most recent call last):
  File "train.py", line 224, in estimate_loss
    logits, loss = model(X, Y)
{OOM}
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(LOG)
    return path


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `watch` keeps its timelines, empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "state" / "lowtide" / "watch"
    folder.mkdir(parents=True)
    return folder


def write_timeline(path: Path, **end: object) -> None:
    with Journal(path) as journal:
        journal.write(
            "start", kind="watch", pid=1 << 30, command=["python", "train.py"], settings={}
        )
        journal.write("end", **{"outcome": "ended", **end})


def first_line(told: Outcome) -> str:
    return told.out.splitlines()[0]


def test_the_verdict_comes_first_then_the_evidence_then_what_to_change(
    capsys: Capsys, log: Path
) -> None:
    told = call(capsys, "why", log)
    assert told.code == 0
    assert told.err == ""
    sentence = " ".join(told.out.partition("\n\n")[0].split())
    assert sentence.startswith("Out of GPU memory (certain): it asked the GPU for 1.54 GiB")
    assert (
        "exactly batch 8 × 1024 positions × 50304 vocabulary × 4 bytes, the logits in eval"
        in sentence
    )
    assert told.out.index("evidence") < told.out.index("what to change")
    assert "\n  + " in told.out
    assert "\n  1. " in told.out
    assert max(map(len, told.out.splitlines())) <= 112


def test_json_holds_everything_on_one_line(capsys: Capsys, log: Path) -> None:
    found = call(capsys, "why", log, "--exit-code", "1", "--json").json
    assert found["cause"] == "out of GPU memory"
    assert found["sureness"] == "certain"
    assert {"source", "text", "speaks"} == set(found["evidence"][0])  # type: ignore[index]
    assert found["remedies"]


def test_the_newest_timeline_is_asked_about_where_nothing_is_named(
    capsys: Capsys, state: Path
) -> None:
    import os

    write_timeline(state / "20260101-000000-1.jsonl", exit_code=0)
    write_timeline(state / "20250101-000000-1.jsonl", exit_code=143, signal=15)
    os.utime(state / "20250101-000000-1.jsonl", (1, 1))
    assert "finished" in first_line(call(capsys, "why", "--last"))
    assert "finished" in first_line(call(capsys, "why"))
    assert "SIGTERM" in first_line(call(capsys, "why", state / "20250101-000000-1.jsonl"))


def test_137_alone_is_unknown(capsys: Capsys, state: Path, tmp_path: Path) -> None:
    told = call(capsys, "why", "--exit-code", "137")
    assert told.code == 0
    assert told.out.startswith("Unknown: exit code 137 means SIGKILL in a shell")


def test_a_saved_log_of_the_kernel_decides(capsys: Capsys, state: Path, tmp_path: Path) -> None:
    saved = tmp_path / "dmesg.txt"
    saved.write_text(
        "[9.0] Out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:1024kB\n"
    )
    told = call(
        capsys, "why", "--pid", "4711", "--exit-code", "137", "--kernel-log", saved, "--json"
    )
    assert told.json["cause"] in ("out of memory: the machine", "running")


def test_control_characters_of_files_are_shown_and_not_obeyed(
    capsys: Capsys, tmp_path: Path
) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07\u202e\r"
    log = tmp_path / "a\x1b[31m.log"
    log.write_text(f"Traceback (most recent call last):\n  File 'x'\nValueError: {evil} gone\n")
    run = tmp_path / "run"
    run.mkdir()
    with Journal(run / LOG_NAME) as journal:
        journal.write("start", kind="train", pid=1 << 30, settings={}, command=[evil])
        journal.write(
            "end", outcome="failed", exit_code=1, problem=f"bad {evil}", remedy=f"do {evil}"
        )
    for target in (log, run):
        told = call(capsys, "why", target)
        assert told.code == 0
        bad = [c for c in told.out if not c.isprintable() and c != "\n"]
        assert bad == []
        assert "\\x1b[2J" in told.out


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["nowhere"], "does not exist"),
        (["."], "holds no log.jsonl"),
        (["--log", "nowhere"], "does not exist"),
        (["--last", "x.log"], "exclude each other"),
        (["--pid", "0"], "0 is not in the range"),
        (["--last"], "there is no timeline in"),
        ([], "there is no timeline in"),
    ],
)
def test_2_when_the_question_is_wrong(
    capsys: Capsys, state: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], problem: str
) -> None:
    monkeypatch.chdir(state)
    refused = call(capsys, "why", *flags)
    assert refused.code == 2
    assert problem in refused.problem


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pipes with names")
def test_a_pipe_is_not_waited_for(capsys: Capsys, tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    assert call(capsys, "why", tmp_path / "pipe").code == 2
    write_timeline(tmp_path / "t.jsonl", exit_code=1)
    told = call(capsys, "why", tmp_path / "t.jsonl", "--log", tmp_path / "pipe")
    assert "it is not a plain file" in told.out


@pytest.mark.skipif(sys.platform != "linux", reason="boxes and signals")
def test_what_watch_saw_is_explained(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    command = (sys.executable, "-S", "-c", "import os; os.kill(os.getpid(), 15)")
    lowtide_process("watch", "--quiet", "--", *command, env=env)
    told = lowtide_process("why", "--last", "--json", env=env)
    assert told.code == 0, told.err
    assert (told.json["cause"], told.json["sureness"]) == ("terminated", "certain")


def test_it_loads_neither_torch_nor_numpy(log: Path) -> None:
    code = (
        "import json, sys\nfrom lowtide.cli.main import main\n"
        "try:\n    main(['why', sys.argv[1], '--json'])\n"
        "except SystemExit:\n    print(json.dumps(list(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, log], capture_output=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert not loaded & {"torch", "numpy", "pyarrow", "rich"}
