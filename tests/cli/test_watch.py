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
from types import SimpleNamespace

import pytest

from lowtide.guard.alerts import WatchResult
from lowtide.guard.forecast import Forecast
from lowtide.guard.job import JobEnd
from lowtide.show.watch_view import draw_history, lines_of, result_line
from lowtide.units import MIB
from tests.commands import LOWTIDE, call, killed_on_failure

HOLD = "kept = bytearray(b'x') * (90 << 20); print('ready', flush=True); input()"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_screen_shows_history_limit_and_the_heaviest(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "COLUMNS": "100"}
    held = [sys.executable, "-c", HOLD]
    with subprocess.Popen(held, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdin
        assert job.stdout
        job.stdout.readline()  # all of its memory is held now
        command = [*LOWTIDE, "watch", "--pid", str(job.pid), "--limit", "100MiB", "--until", "note"]
        started = subprocess.Popen(
            command, stdin=follower, stdout=subprocess.PIPE, stderr=follower, env=environment
        )
        with killed_on_failure(started) as watch:
            os.close(follower)
            wanted = [
                r"limit 100\.0 MiB",
                r"[▁▂▃▄▅▆▇█]+ 9\d%",
                rf"python\S* {job.pid} +9\d\.\d MiB",
                r"note: the job uses 9\d\.\d MiB of its limit of 100\.0 MiB",
            ]
            read_until(leader, wanted)
            job.stdin.close()
            read_until(leader, ["the job ended after"])
            watch.communicate()
    os.close(leader)
    assert (tmp_path / "lowtide/alerts.log").read_text().count("\n") == 1
    assert len(list((tmp_path / "lowtide/watch").glob("*.jsonl"))) == 1


def read_until(terminal: int, patterns: list[str]) -> None:
    """Read what is written to the terminal until every pattern was found in it."""
    seen, deadline = b"", time.monotonic() + 300
    while missing := [
        one
        for one in patterns
        if not re.search(one, CONTROL.sub("", seen.decode(errors="replace")))
    ]:
        assert time.monotonic() < deadline, (missing, seen)
        if select.select([terminal], [], [], 1)[0]:
            try:
                seen += os.read(terminal, 1 << 16)
            except OSError:  # the other end was closed
                raise AssertionError((missing, seen)) from None


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "nothing to watch"),
        (["--pid", "1", "--", "true"], "a command and a process cannot be watched at once"),
        (["--limit", "many", "--", "true"], "invalid value for '--limit': 'many' is not a size"),
        (["--limit", "0GB", "--", "true"], "limit cannot be 0GB"),
        (["--limit", "120%", "--", "true"], "'120%' is not a share"),
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


@pytest.mark.parametrize(("seconds", "words"), [(0.1, "at least 1.0 MiB"), (1.0, "peak 1.0 MiB")])
def test_the_peak_of_a_job_too_short_to_measure_is_a_least(seconds: float, words: str) -> None:
    result = WatchResult(
        end=JobEnd(exit_code=0, signal=None, oom_kills=None),
        seconds=seconds,
        peak_private_bytes=MIB,
        alerts=0,
        timeline=Path("t.jsonl"),
        forced=False,
    )
    assert words in result_line(result, 2 * MIB)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_last_line_has_the_peak_of_every_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The card of a driver that stands in is fullest at the second look."""
    looks, seen = iter([1 * MIB, 5 * MIB, 3 * MIB]), tmp_path / "seen"

    def look() -> int:
        used_bytes = next(looks, MIB)
        if used_bytes == 3 * MIB:
            seen.touch()  # the job ends
        return used_bytes

    driver = SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=look(), total=8 * MIB),
        nvmlDeviceGetName=lambda _: "a card",
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)  # type: ignore[arg-type]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    job = 'while [ ! -e "$0" ]; do sleep 0.05; done'
    watched = call(capsys, "watch", "--", "sh", "-c", job, seen)
    assert watched.code == 0
    assert "GPU 0 5.0 MiB of 8.0 MiB; timeline" in watched.err


def test_a_forecast_is_a_line() -> None:
    told = Forecast(seconds=60.0, reaches_bytes=MIB, bytes_per_second=1.0)
    assert lines_of(told) == [f"forecast: {told.in_words}"]
