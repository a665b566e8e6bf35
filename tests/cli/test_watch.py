"""`lowtide watch` on a terminal, and what it says about wrong flags."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.guard.forecast import Forecast
from lowtide.guard.job import JobEnd
from lowtide.guard.result import WatchResult
from lowtide.report.watch_view import draw_history, lines_of, result_line
from lowtide.units import MIB
from tests.commands import LOWTIDE, call

HOLD = "import time; kept = bytearray(b'x') * (90 << 20); time.sleep(2.5)"


def on_a_terminal(command: list[str], folder: Path) -> str:
    """All that the command wrote to its terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        command, stdin=follower, stdout=subprocess.PIPE, stderr=follower, env=environment
    ) as process:
        os.close(follower)
        seen, deadline = b"", time.monotonic() + 300
        while time.monotonic() < deadline:
            if select.select([leader], [], [], 0.1)[0]:
                try:
                    seen += os.read(leader, 1 << 16)
                except OSError:  # the other end was closed
                    break
            elif process.poll() is not None:
                break
        process.communicate()
    os.close(leader)
    return seen.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_screen_shows_history_limit_and_the_heaviest(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD]) as job:
        command = [*LOWTIDE, "watch", "--pid", str(job.pid), "--limit", "100MiB", "--until", "note"]
        seen = on_a_terminal(command, tmp_path)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert "limit 100.0 MiB" in text
    assert re.search(r"[▁▂▃▄▅▆▇█]+ 9\d%", text)
    assert re.search(rf"python\S* {job.pid} +9\d\.\d MiB", text)
    assert re.search(r"note: the job uses 9\d\.\d MiB of its limit of 100\.0 MiB", text)
    assert "the job ended after" in text
    assert (tmp_path / "lowtide/alerts.log").read_text().count("\n") == 1
    assert len(list((tmp_path / "lowtide/watch").glob("*.jsonl"))) == 1


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "nothing to watch"),
        (["--pid", "1", "--", "true"], "a command and a process cannot be watched at once"),
        (["--limit", "many", "--", "true"], "invalid value for '--limit': 'many' is not a size"),
        (["--limit", "0GB", "--", "true"], "--limit of 0GB is nothing"),
        (["--limit", "120%", "--", "true"], "'120%' is no share"),
        (["--pid", "4194999"], "there is no process 4194999"),
        (["--", "lowtide-no-such"], "there is no command 'lowtide-no-such' that can be run"),
    ],
)
def test_what_cannot_be_watched_is_told(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    problem: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    outcome = call(capsys, "watch", *flags)
    assert outcome.code == 2
    assert outcome.problem == problem
    assert outcome.hint
    assert list(tmp_path.iterdir()) == []


def test_the_picture_is_as_high_as_the_limit() -> None:
    assert draw_history([0, 50, 100, 900], 100, rows=1) == ["▁▄██"]
    assert draw_history([100, 50], 100, rows=2) == ["█ ", "██"]


@pytest.mark.parametrize(
    ("end", "forced", "words"),
    [
        (JobEnd(exit_code=0, signal=None, oom_kills=0), False, "ended with code 0 after"),
        (JobEnd(exit_code=139, signal=11, oom_kills=None), False, "was ended by signal 11 after"),
        (JobEnd(exit_code=137, signal=9, oom_kills=0), True, "was ended by the guard after"),
        (
            JobEnd(exit_code=137, signal=9, oom_kills=1),
            False,
            "was ended by signal 9, 1 killed by its own cgroup after",
        ),
        (JobEnd(exit_code=None, signal=None, oom_kills=None), False, "the job ended after"),
    ],
)
def test_the_last_line_says_how_it_ended(end: JobEnd, forced: bool, words: str) -> None:
    result = WatchResult(
        end=end,
        seconds=2.0,
        peak_private_bytes=MIB,
        alerts=0,
        timeline=Path("t.jsonl"),
        forced=forced,
    )
    assert words in result_line(result, 2 * MIB)


def test_a_forecast_is_a_line() -> None:
    told = Forecast(seconds=60.0, reaches_bytes=MIB, bytes_per_second=1.0)
    assert lines_of(told) == [f"forecast: {told.in_words}"]
