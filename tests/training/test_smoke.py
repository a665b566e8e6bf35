"""The smoke test tells what a long run would find out late, and leaves nothing behind."""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from lowtide import child as child_room
from lowtide.child import OUT_OF_MEMORY, kill_session
from lowtide.errors import (
    DoesNotFitError,
    LowtideError,
    StoppedError,
    StorageError,
    UsageError,
    VerificationError,
)
from lowtide.events import ignore
from lowtide.guard.process_folders import process_folder_name
from lowtide.memory.meter import child_pids
from lowtide.plan.speed import Speed
from lowtide.settings import TrainRequest
from lowtide.show.training_results import show_smoke
from lowtide.stages import train as train_room
from lowtide.stages.folder import RUN as RUN_FOLDER
from lowtide.stages.folder import check_folder
from lowtide.stages.resolve_run import ResolvedRun
from lowtide.stages.smoke import ChildReport, _judge, _shortened, run_child, smoke
from lowtide.stages.train import start_training
from lowtide.training.run_results import SmokeReport, TrainResult
from lowtide.units import MIB, format_count
from tests.training.small_runs import SHAPE, VOCABULARY, Heard, make_settings, make_tokens

EVEN = math.log(VOCABULARY)
SETTINGS = make_settings(Path("somewhere"), steps=5000, batch_tokens=100 * SHAPE.context)
RUN = ResolvedRun(folder=Path("nowhere"), settings=SETTINGS)
FOUND = ChildReport(
    micro_batch=3,
    losses=[EVEN - 0.1 * n for n in range(10)],
    seconds=[9.0, 9.0, *[0.25] * 8],
    checkpoint_seconds=0.5,
    gpu_bytes=1000,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokens(tmp_path_factory.mktemp("smoke") / "tokens")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def problems(**changed: object) -> tuple[str, ...]:
    found = replace(FOUND, **changed)  # type: ignore[arg-type]
    return _judge(replace(RUN, predicted_gpu_bytes=1000), _shortened(SETTINGS), found).problems


def test_a_bad_first_loss_is_reported() -> None:
    assert problems() == ()
    for first in (EVEN + 1, EVEN - 1, math.nan, math.inf):
        told = problems(losses=[first, *FOUND.losses[1:]])
        assert any("the first loss is" in one and f"{EVEN:.3f}" in one for one in told), first


def test_a_loss_that_does_not_fall_is_reported() -> None:
    assert "does not fall" in problems(losses=[EVEN] * 10)[0]
    assert "does not fall" in problems(losses=[EVEN, *[math.nan] * 9])[0]


def test_memory_other_than_predicted_is_reported() -> None:
    assert problems(gpu_bytes=1049) == ()
    assert "+6%" in problems(gpu_bytes=1060)[0]
    assert "-6%" in problems(gpu_bytes=940)[0]


def answer(monkeypatch: pytest.MonkeyPatch, **message: object) -> None:
    """As the child would."""
    code = f"from lowtide.child import tell_parent; tell_parent(**{message!r})"
    monkeypatch.setattr(child_room, "python_command", lambda *_: [sys.executable, "-c", code])


def test_hours_are_those_of_whole_steps_and_evaluations_without_the_first_which_compile() -> None:
    report = _judge(RUN, _shortened(SETTINGS), FOUND)
    assert report.step_seconds == pytest.approx(0.25 * 100 / 6)
    assert report.tokens_per_second == pytest.approx(6 * SHAPE.context / 0.25)
    speed = Speed(tokens_per_second=report.tokens_per_second, basis="measured")
    assert report.hours == replace(RUN, speed=speed).hours
    windows = 5000 * 100 + 5000 // 6 * 16 / 3
    assert report.hours == pytest.approx(windows * 0.25 / 6 / 3600)


def test_speed_is_compared_with_the_peak_of_the_card() -> None:
    rate = 6 * SHAPE.context / 0.25
    run = replace(RUN, peak_flops=4 * rate * SHAPE.flops_per_token)
    report = _judge(run, _shortened(SETTINGS), FOUND)
    assert report.mfu == pytest.approx(0.25)
    assert dict(report.rows())["MFU"].startswith("25% ")
    assert _judge(RUN, _shortened(SETTINGS), FOUND).mfu is None


def test_lines_say_how_large_the_tried_steps_were_where_they_were_smaller(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = format_count(6 * SHAPE.context)
    for windows, shows_it in ((100, True), (6, False)):
        settings = replace(SETTINGS, batch_tokens=windows * SHAPE.context)
        report = _judge(replace(RUN, settings=settings), _shortened(settings), FOUND)
        show_smoke(report, as_json=False)
        for text in (dict(report.rows())["step"], capsys.readouterr().out):
            assert (f" {small} instead of" in text) == shows_it
        show_smoke(report, as_json=True)
        told = json.loads(capsys.readouterr().out)["smoke"]
        tokens = [told[name] // SHAPE.context for name in ("tried_tokens", "step_tokens")]
        assert tokens == [6, windows]


def test_what_killed_tests_left_is_cleared_away_and_no_folder_is_spoilt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    out = tmp_path / "run"
    ours = process_folder_name(".lowtide-smoke-") + "-x"
    left = ours.replace(f"-{os.getpid()}-", f"-{dead.pid}-")
    for place in (tmp_path, out / ".lowtide"):
        for name in (left, ours):
            (place / name / "run").mkdir(parents=True)
    answer(monkeypatch, report=asdict(FOUND))
    smoke(replace(RUN, folder=out))
    check_folder(out, RUN_FOLDER)
    assert [one.name for one in (out / ".lowtide").iterdir()] == [ours]
    smoke(replace(RUN, folder=tmp_path / "other"))
    assert not (tmp_path / left).exists()
    assert (tmp_path / ours).exists()


@pytest.mark.slow
def test_the_budget_that_was_named_holds_for_the_try_too(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DoesNotFitError, match="more than the"):
        smoke(
            ResolvedRun(folder=tmp_path / "run", settings=make_settings(data)), memory="1000000GiB"
        )


def test_ten_steps_hold_the_memory_of_the_whole_run() -> None:
    short = _shortened(SETTINGS)
    assert (short.steps, short.micro_batch, short.windows_per_step) == (10, 3, 6)
    small = _shortened(replace(SETTINGS, micro_batch=200))
    assert small.windows_per_step == SETTINGS.windows_per_step


@pytest.mark.parametrize(
    "kind", [LowtideError, UsageError, DoesNotFitError, VerificationError, StorageError]
)
def test_an_error_of_the_child_is_told_as_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[LowtideError]
) -> None:
    answer(monkeypatch, error={"kind": kind.__name__, "problem": "it broke", "remedy": "mend it"})
    with pytest.raises(LowtideError) as told:
        smoke(replace(RUN, folder=tmp_path / "run"))
    assert type(told.value) is kind
    assert (told.value.problem, told.value.remedy) == ("it broke", "mend it")


@pytest.mark.parametrize(
    ("code", "kind"), [(-9, DoesNotFitError), (OUT_OF_MEMORY, DoesNotFitError), (1, LowtideError)]
)
def test_a_child_that_died_without_a_word_is_told_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, kind: type[LowtideError]
) -> None:
    ends = "os.kill(os.getpid(), 9)" if code == -9 else f"os._exit({code})"
    script = f"import json, os, sys; os.mkdir(json.loads(sys.stdin.readline())['out']); {ends}"
    monkeypatch.setattr(child_room, "python_command", lambda *_: [sys.executable, "-c", script])
    with pytest.raises(LowtideError) as told:
        smoke(replace(RUN, folder=tmp_path / "deep" / "run"))
    assert list(tmp_path.iterdir()) == []
    assert type(told.value) is kind
    assert f"code {code}" in told.value.problem
    assert ("--micro-batch" in told.value.remedy) == (kind is DoesNotFitError)


def start(run: ResolvedRun, **changed: object) -> SmokeReport | TrainResult | None:
    names = {one.name for one in fields(TrainRequest)}
    asked = {name: changed.pop(name) for name in names & changed.keys()}
    usual: dict[str, object] = {
        "environment": {},
        "restart": False,
        "listen": ignore,
        "should_stop": lambda: None,
    }
    request = TrainRequest(**asked)  # type: ignore[arg-type]
    return start_training(run, request, **{**usual, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "rate", "tried"),
    [(5000, 1e9, False), (10, 0.01, True), (5000, None, True), (10, None, False)],
)
def test_runs_that_take_long_are_tried_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: int, rate: float | None, tried: bool
) -> None:
    settings = make_settings(Path("somewhere"), steps=steps)
    speed = Speed(tokens_per_second=rate, basis="guessed") if rate else None
    run = ResolvedRun(folder=tmp_path / "run", settings=settings, speed=speed)
    seen = []

    def try_it(*_: object, **__: object) -> None:
        seen.append("tried")
        raise LowtideError("enough", remedy="none")

    monkeypatch.setattr(train_room, "smoke", try_it)
    with pytest.raises(LowtideError):
        start(run)
    assert (seen == ["tried"]) == tried


def test_of_several_ranks_one_speaks_and_tries(tmp_path: Path) -> None:
    second = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    heard = Heard()
    assert start(RUN, environment=second, smoke=True, listen=heard) is None
    assert heard.events == []


def test_ranks_share_the_budget_of_their_machine(tmp_path: Path) -> None:
    run = ResolvedRun(folder=tmp_path / "run", settings=SETTINGS, ram_needs={"all": 100 * MIB})
    four = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "4"}
    with pytest.raises(DoesNotFitError, match=r"the budget is 75\.0 MiB"):
        start(run, environment=four, memory="300MiB")


def test_the_reader_has_ended_before_its_pipe_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is held up between two lines until the child is killed; a traceback of it fails the test."""
    has_line, killed = threading.Event(), threading.Event()
    ended: list[bytes | None] = []

    class Slow(queue.SimpleQueue[bytes | None]):
        def put(self, line: bytes | None, *_: object) -> None:
            has_line.set()
            killed.wait()
            time.sleep(0.2)  # without a join, the pipe is closed meanwhile
            ended.append(line)

    def kill(child: subprocess.Popen[bytes]) -> None:
        kill_session(child)
        killed.set()

    code = "import time; print('a line', flush=True); time.sleep(3600)"
    monkeypatch.setattr(child_room, "python_command", lambda *_: [sys.executable, "-c", code])
    monkeypatch.setattr(child_room, "kill_session", kill)
    monkeypatch.setattr(child_room.queue, "SimpleQueue", Slow)
    with pytest.raises(StoppedError):
        run_child({}, ignore, lambda: "interrupted" if has_line.is_set() else None)
    assert ended == [b"a line\n", None]


@pytest.mark.parametrize(("reason", "code"), [("interrupted", 130), ("terminated", 75)])
def test_a_stop_during_the_test_ends_it_at_once_and_nothing_is_begun(
    tmp_path: Path, reason: str, code: int
) -> None:
    settings = make_settings(make_tokens(tmp_path / "tokens"), steps=5000)
    run = ResolvedRun(folder=tmp_path / "run", settings=settings)
    files, processes = set(tmp_path.iterdir()), set(child_pids(os.getpid()))
    tried: list[set[int]] = []

    def should_stop() -> str | None:
        """Asked while the child loads torch."""
        tried.append(set(child_pids(os.getpid())) - processes)
        return reason if len(tried) > 1 else None

    with pytest.raises(StoppedError) as told:
        start(run, should_stop=should_stop)
    assert len(tried[-1]) == 1
    assert set(child_pids(os.getpid())) == processes
    assert told.value.exit_code == code
    assert set(tmp_path.iterdir()) == files


@pytest.mark.slow
def test_a_run_that_overflows_at_once_is_reported_and_leaves_nothing(
    data: Path, tmp_path: Path
) -> None:
    settings = make_settings(data, steps=5000, learning_rate=1e30, warmup_steps=0)
    out = tmp_path / "deep" / "run"
    heard = Heard()
    report = smoke(ResolvedRun(folder=out, settings=settings), listen=heard)
    assert not math.isfinite(report.last_loss)
    assert heard.notes[0].startswith("step 1 of 10, loss 4.")
    assert len(heard.notes) == 10
    assert report.serious
    assert any("skipped" in one for one in report.notes)
    assert any("does not fall" in one for one in report.problems)
    assert report.rows()
    assert list(tmp_path.iterdir()) == []
