"""A leak is noted, asked and ended at its limit while all others stay alive; reading files is not a leak."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lowtide.guard.box import open_box
from lowtide.journal import read_journal
from lowtide.units import MIB
from tests.commands import LOWTIDE, killed_on_failure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches Linux processes")

SEEN = """
import json, os, sys, time

def until_seen():
    # two looks of the watch: the second began after this call
    wanted = looks() + 2
    while looks() < wanted:
        time.sleep(0.01)

def looks():
    with open(sys.argv[1]) as timeline:
        os.kill(json.loads(timeline.readline())["pid"], 0)  # an error when the watch has died
        return sum('"reading"' in line for line in timeline)
"""
GROW = """
    kept.append(bytearray(b'x') * (5 << 20))
    until_seen()
"""
LEAK = "\nkept = []\nwhile True:" + GROW
DEAF_LEAK = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + LEAK
POLITE_LEAK = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))" + LEAK
SHORT_LEAK = "kept = []\nfor _ in range(24):" + GROW
SCAN = """
import mmap, sys, time
with open(sys.argv[1], 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
    began = time.monotonic()
    while time.monotonic() - began < 2.5:
        sum(data[at] for at in range(0, len(data), 4096))
"""


class Desk:
    """A place for timelines, and `lowtide watch` from the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.timeline, self.alerts = folder, folder / "t.jsonl", folder / "alerts.log"
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}

    def watch(
        self, *flags: str, command: list[str], **more: object
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        files = ("--timeline", str(self.timeline), "--alerts", str(self.alerts), "--every", "0.05")
        started = subprocess.Popen(
            [*LOWTIDE, "watch", *files, *flags, "--", *command],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,  # type: ignore[call-overload]
        )
        return killed_on_failure(started)

    def finish(self, *flags: str, command: list[str]) -> tuple[int, str, str]:
        with self.watch(*flags, command=command) as process:
            out, err = process.communicate(timeout=300)
        return process.returncode, out, err

    def job(self, code: str, *more: str) -> list[str]:
        """Python that can wait, by `until_seen()`, until the watch has seen what it did."""
        return python(SEEN + code, str(self.timeline), *more)

    def told(self, event: str) -> list[dict[str, object]]:
        return [record for record in read_journal(self.timeline) if record["event"] == event]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def python(code: str, *more: str) -> list[str]:
    return [sys.executable, "-c", code, *more]


def test_a_leak_is_noted_asked_and_ended_and_a_bystander_stays_responsive(desk: Desk) -> None:
    slept = 0.0
    flags = ("--limit", "200MiB", "--until", "end", "--grace", "300")
    with desk.watch(*flags, command=desk.job(DEAF_LEAK)) as process:
        while process.poll() is None:
            before = time.monotonic()
            subprocess.run(["true"], check=True)
            time.sleep(0.02)
            slept = max(slept, time.monotonic() - before)
        _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGKILL, err
    assert [alert["stage"] for alert in desk.told("alert")] == ["note", "ask", "end"]
    (end,) = desk.told("end")
    assert (end["oom_kills"], end["signal"], end["forced"]) in (
        (0, signal.SIGKILL, True),
        (None, signal.SIGKILL, True),
    )
    assert 180 * MIB < int(str(end["peak_private_bytes"])) < 230 * MIB
    assert slept < 5.0
    lines = desk.alerts.read_text().splitlines()
    of_limit = [line for line in lines if "of its limit of 200.0 MiB" in line]
    assert len(of_limit) == 3
    assert len(lines) == 3 + len(desk.told("forecast"))  # after ten seconds, on a slow machine
    assert all("heaviest: python" in line for line in lines)


def test_by_default_a_job_is_asked_and_its_own_answer_passes_through(desk: Desk) -> None:
    code, _, err = desk.finish("--limit", "200MiB", command=desk.job(POLITE_LEAK))
    assert code == 75, err
    assert [alert["stage"] for alert in desk.told("alert")] == ["note", "ask"]
    assert "asking it to stop: the job uses" in err


def test_the_user_may_want_to_be_told_and_nothing_else(desk: Desk) -> None:
    flags = ("--limit", "50MiB", "--until", "note", "--on-alert", 'echo "$LOWTIDE_STAGE" >&2')
    with desk.watch(*flags, command=desk.job(SHORT_LEAK)) as job:
        out, err = job.communicate(timeout=300)
    assert (job.returncode, out) == (0, "")
    # at four fifths of the limit, at the limit, at twice the limit
    assert [alert["stage"] for alert in desk.told("alert")] == ["note"] * 3
    assert "\nnote\n" in err


@pytest.mark.slow
def test_reading_a_large_file_is_left_alone(desk: Desk) -> None:
    large = desk.folder / "large.bin"
    with large.open("wb") as file:
        for _ in range(40):
            file.write(os.urandom(MIB) * 8)
    code, _, err = desk.finish(
        "--limit", "100MiB", "--until", "end", command=python(SCAN, str(large))
    )
    assert code == 0, err
    assert desk.told("alert") == []
    assert max(int(str(one["mapped_bytes"])) for one in desk.told("reading")) > 50 * MIB


def test_output_input_and_exit_code_pass_through(desk: Desk) -> None:
    command = ["sh", "-c", "read line; echo got $line; echo oops >&2; exit 7"]
    with desk.watch("--quiet", command=command, stdin=subprocess.PIPE) as process:
        out, err = process.communicate("hello\n", timeout=300)
    assert (process.returncode, out, err) == (7, "got hello\n", "oops\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_job(desk: Desk, number: signal.Signals) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    with desk.watch("--quiet", command=python(code)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.communicate(timeout=300)
    assert process.returncode == 42


def test_a_process_that_runs_already_is_watched_to_its_end(desk: Desk) -> None:
    code = "kept = bytearray(b'x') * (60 << 20); print('ready', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(python(code), **pipes) as job:  # type: ignore[call-overload]
        job.stdout.readline()
        flags = ("--timeline", str(desk.timeline), "--alerts", str(desk.alerts), "--json")
        command = ["watch", "--pid", str(job.pid), "--limit", "70MiB", "--until", "note"]
        started = subprocess.Popen(
            [*LOWTIDE, *command, *flags],
            env=desk.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with killed_on_failure(started) as watch:
            while watch.poll() is None and not (desk.timeline.exists() and desk.told("alert")):
                time.sleep(0.05)
            job.stdin.close()
            out, err = watch.communicate(timeout=300)
    assert watch.returncode == 0, err
    found = json.loads(out)
    assert found["peak_private_bytes"] > 60 * MIB
    assert (found["exit_code"], found["alerts"], found["ended_by_guard"]) == (None, 1, False)


def test_a_timeline_of_a_killed_watch_can_be_read_and_the_job_lives_on(desk: Desk) -> None:
    with desk.watch("--limit", "1GiB", command=["sleep", "63"]) as process:
        while not desk.timeline.exists() or not desk.told("reading"):
            time.sleep(0.05)
        (start,) = desk.told("start")
        process.kill()
        process.wait()
        os.kill(int(str(start["job_pid"])), signal.SIGKILL)
        process.communicate()
    assert desk.told("end") == []
    for _ in range(50):  # who makes the next box sweeps, as soon as the dead are gone from it
        with open_box(None) as box:
            left = list(box.folder.parent.glob(f"lowtide-{process.pid}-*")) if box else []
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"{left} are left")
