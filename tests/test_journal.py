"""The log tells every step once, whatever was killed in between."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import DataError, StorageError
from lowtide.journal import Journal, read_journal, rewind


def _write_steps(path: Path, first: int, last: int, *, seconds: float) -> None:
    with Journal(path) as log:
        log.write("start", step=first - 1)
        for step in range(first, last + 1):
            log.write("step", step=step, loss=10.0 / step, seconds=seconds)
            if step % 4 == 0:
                log.write("evaluation", step=step, loss=9.0 / step)


def _steps_told(path: Path) -> list[dict[str, object]]:
    told = [record for record in read_journal(path) if record["event"] != "start"]
    return [
        {key: value for key, value in one.items() if key not in ("at", "seconds")} for one in told
    ]


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    log = Journal(tmp_path / "log.jsonl")
    log.write("step", step=1, loss=2.5, text="中\n\x00", path=tmp_path, many=(1, 2))
    (record,) = read_journal(tmp_path / "log.jsonl")
    assert time.time() - 60 < float(str(record.pop("at"))) <= time.time() + 1
    assert record == {"event": "step", "step": 1, "loss": 2.5, "text": "中\n\x00"} | {
        "path": str(tmp_path),
        "many": [1, 2],
    }
    log.close()
    log.close()


def test_numbers_that_are_not_finite_leave_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Journal(path) as log:
        log.write("step", step=1, loss=math.nan, more={"norms": [math.inf, -math.inf, 1.0]})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    record = json.loads(path.read_text(), parse_constant=refuse)
    assert record["loss"] == "nan"
    assert record["more"] == {"norms": ["inf", "-inf", 1.0]}


@given(killed_at=st.integers(1, 20), back=st.integers(0, 20), torn=st.integers(0, 40))
def test_after_a_kill_and_a_resume_the_steps_are_those_of_a_run_without(
    tmp_path_factory: pytest.TempPathFactory, killed_at: int, back: int, torn: int
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    whole, path = folder / "whole.jsonl", folder / "log.jsonl"
    _write_steps(whole, 1, 24, seconds=1.0)
    _write_steps(path, 1, killed_at, seconds=2.0)
    with path.open("ab") as file:
        file.write(b'{"event": "step", "step": 7, "loss": 1.2345}'[:torn])
    checkpoint = max(0, killed_at - back)
    rewind(path, checkpoint)
    _write_steps(path, checkpoint + 1, 24, seconds=3.0)
    assert _steps_told(path) == _steps_told(whole)
    assert sorted(entry.name for entry in folder.iterdir()) == ["log.jsonl", "whole.jsonl"]


def test_a_last_line_that_was_cut_short_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    _write_steps(path, 1, 3, seconds=1.0)
    records = list(read_journal(path))
    data = path.read_bytes()
    last_line = data.rindex(b"\n", 0, -1) + 1
    for end in range(last_line, len(data)):
        path.write_bytes(data[:end])
        assert list(read_journal(path)) == records[:-1]


def test_a_note_without_a_step_goes_with_the_step_before_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Journal(path) as log:
        log.write("note", text="first")
        log.write("step", step=1)
        log.write("note", text="of one")
        log.write("step", step=2)
        log.write("note", text="of two")
    assert rewind(path, 1) == 2
    assert [record.get("text") for record in read_journal(path)] == ["first", None, "of one"]


def test_where_nothing_is_taken_back_the_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert rewind(path, 3) == 0
    assert not path.exists()
    _write_steps(path, 1, 3, seconds=1.0)
    before = path.stat()
    assert rewind(path, 3) == 0
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_log_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.jsonl"
    _write_steps(path, 1, 9, seconds=1.0)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("lowtide.journal.sync_file", full)
    with pytest.raises(StorageError):
        rewind(path, 2)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_damaged_line_is_named_and_without_it_the_log_reads(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"event": "start"}\nnonsense\n{"event": "note"}\n')
    with pytest.raises(DataError, match="line 2") as caught:
        list(read_journal(path))
    assert "remove that line" in caught.value.remedy
    path.write_bytes(path.read_bytes().replace(b"nonsense\n", b""))
    assert len(list(read_journal(path))) == 2


_WRITE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from lowtide.journal import Journal
log = Journal(Path(sys.argv[1]))
for step in itertools.count(1):
    log.write("step", step=step, loss=1 / step)
    if step == 50:
        print("ready", flush=True)
"""


def test_a_kill_loses_no_line_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    command = [sys.executable, "-c", _WRITE_FOR_EVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    steps = [record["step"] for record in read_journal(path)]
    assert len(steps) >= 50
    assert steps == list(range(1, len(steps) + 1))


def test_reading_and_rewinding_hold_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("w") as file:
        for step in range(1, 30_001):
            file.write(json.dumps({"event": "step", "step": step, "text": "x" * 200}) + "\n")
    tracemalloc.start()
    assert rewind(path, 20_000) == 10_000
    assert sum(1 for _ in read_journal(path)) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000, peak


def test_how_sessions_began_and_ended_is_not_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Journal(path) as log:
        log.write("start", step=0)
        for step in range(1, 8):
            log.write("step", step=step, loss=1.0)
        log.write("note", text="late", level="info")
        log.write("end", outcome="failed", problem="the disk broke")
    assert rewind(path, 4) == 4
    events = [(record["event"], record.get("step")) for record in read_journal(path)]
    assert events == [("start", 0), *(("step", step) for step in range(1, 5)), ("end", None)]


def test_a_failing_disk_is_told_once_and_forgiven_where_that_is_asked_for(tmp_path: Path) -> None:
    path, told = tmp_path / "log.jsonl", []
    path.symlink_to("/dev/full")
    with pytest.raises(StorageError), Journal(path) as log:
        log.write("note", text="strict")
    with Journal(path, on_failure=told.append) as log:
        log.write("note", text="first")
        log.write("note", text="second")
    assert len(told) == 1


def test_a_step_in_a_text_is_no_step(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Journal(path) as log:
        log.write("sample", step=3, text='{"event": "step", "at": 1, "step": 99, }')
        log.write("note", text='"step": 99', level="info")
    assert rewind(path, 3) == 0
    assert rewind(path, 2) == 2
