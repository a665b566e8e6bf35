"""However a run is cut off, the same command comes to the weights of a run that never was. Byte for byte.

A small version of the campaign in `bench/run_killed.py`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from lowtide.errors import StoppedError
from lowtide.events import Event, Stepped
from lowtide.stages.train import train
from lowtide.storage.sealed_json import read_sealed
from lowtide.training import checkpoint as checkpoints
from lowtide.training import loop as loops
from lowtide.training.checkpoint import checkpoint_of, find_checkpoints
from lowtide.training.run_folder import RUN_NAME
from lowtide.training.sample_text import Sampler
from tests.commands import forbid_removing
from tests.training.small_runs import (
    Command,
    hidden_in,
    make_settings,
    make_tokens,
    run_heard,
    tensors_of,
    told_of,
    write_plan,
)

STEPS = 60
CHANGED = {"steps": STEPS, "checkpoint_every": 7, "evaluate_every": 10}
KILLS = 3


class Scene:
    """Data, a plan, and what a run of it comes to when nobody disturbs it."""

    def __init__(self, folder: Path) -> None:
        self.data = make_tokens(folder / "tokens")
        self.settings = make_settings(self.data, **CHANGED)
        self.plan = write_plan(folder / "plan.toml", self.settings)
        run_heard(folder / "undisturbed", self.settings)
        self.wanted = tensors_of(folder / "undisturbed"), told_of(folder / "undisturbed")

    def start(self, run: Path, **more: object) -> Command:
        """`lowtide train` as a process."""
        said = run.with_name("said")
        arguments = ("train", self.data, "--plan", self.plan, "--out", run)
        return Command(said, *arguments, **more)  # type: ignore[arg-type]

    def finish(self, run: Path) -> None:
        """Go on to the end, and compare."""
        run_heard(run, self.settings)
        assert tensors_of(run)["checkpoint"] == b"step-00000060"
        assert (tensors_of(run), told_of(run)) == self.wanted
        assert hidden_in(run) == []


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("lost"))


class Stopper:
    """Asks for a stop when a step is done: by a `.stop` file, or when it is asked."""

    def __init__(self, run: Path, step: int, *, by_file: bool) -> None:
        self._run, self._step, self._by_file = run, step, by_file
        self._reached = False

    def listen(self, event: Event) -> None:
        if isinstance(event, Stepped) and event.step == self._step:
            self._reached = True
            if self._by_file:
                (self._run / ".stop").touch()

    def should_stop(self) -> Literal["terminated"] | None:
        return "terminated" if self._reached and not self._by_file else None


def test_a_run_stopped_at_many_steps_is_the_run_that_was_not(scene: Scene, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for number, step in enumerate((1, 2, 7, 10, 33, 59)):
        stopper = Stopper(run, step, by_file=number % 2 == 0)
        with pytest.raises(StoppedError, match=f"after step {step} of 60"):
            train(run, scene.settings, listen=stopper.listen, should_stop=stopper.should_stop)
        assert not (run / ".stop").exists()
    scene.finish(run)


class Evaluations:
    """Asks for a stop between the parts of an evaluation, once for each of these steps."""

    def __init__(self, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps, self.dropped, self._inside = steps, 0, 0
        plain = loops.evaluate

        def evaluate(*given: object, drop: Callable[[], bool], **more: object) -> float | None:
            self._inside = 1
            try:
                return plain(*given, drop=drop, **more)  # type: ignore[arg-type]
            finally:
                self._inside = 0

        monkeypatch.setattr(loops, "evaluate", evaluate)
        self._step = 0

    def listen(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self._step = event.step

    def should_stop(self) -> Literal["terminated"] | None:
        if self._inside and self._step in self.steps:
            self._inside += 1
            if self._inside > 2:  # some windows were read
                self.steps.remove(self._step)
                self.dropped += 1
                return "terminated"
        return None


def test_a_stop_during_an_evaluation_drops_it_and_it_is_made_up_for(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    evaluations = Evaluations([20, 40, STEPS], monkeypatch)
    for step in (20, 40, STEPS):
        with pytest.raises(StoppedError, match=f"after step {step} of 60"):
            train(
                run,
                scene.settings,
                listen=evaluations.listen,
                should_stop=evaluations.should_stop,
            )
        assert find_checkpoints(run)[-1].name == f"step-{step:08}"
    assert evaluations.dropped == 3
    scene.finish(run)


def test_an_evaluation_that_is_made_up_for_leaves_the_checkpoint_in_place(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the only one: a kill must not find it moved away."""
    run = tmp_path / "run"
    evaluations = Evaluations([20, 30], monkeypatch)
    found = []
    for _ in range(2):
        with pytest.raises(StoppedError):
            train(
                run,
                scene.settings,
                listen=evaluations.listen,
                should_stop=evaluations.should_stop,
            )
        checkpoint = checkpoint_of(run, 20)
        found.append((checkpoint.stat().st_ino, read_sealed(checkpoint / "state.json")))
    (before, owing), (after, made_up) = found
    assert before == after
    assert (owing["best_step"], owing["owes_evaluation"]) != (20, False)
    assert (made_up["best_step"], made_up["owes_evaluation"]) == (20, False)


def test_a_stop_during_a_sample_drops_it(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def write(_self: object, _model: object, drop: Callable[[], bool]) -> str | None:
        asked.append(1)
        return None if drop() else "words"

    monkeypatch.setattr(Sampler, "__call__", write)
    settings = replace(scene.settings, sample_every=5)
    with pytest.raises(StoppedError, match="after step 5 of 60"):
        train(
            tmp_path / "run",
            settings,
            should_stop=lambda: "terminated" if asked else None,
        )


def test_equal_runs_have_equal_checkpoints_to_the_last_byte(scene: Scene, tmp_path: Path) -> None:
    settings = replace(scene.settings, steps=3, checkpoint_every=1, warmup_steps=1)
    found = []
    for name in ("one", "other"):
        torch.manual_seed(len(name))  # nothing depends on who drew before
        train(tmp_path / name, settings)
        last = find_checkpoints(tmp_path / name)[-1]
        found.append({path.name: path.read_bytes() for path in sorted(last.iterdir())})
    assert found[0] == found[1]


def test_a_stop_that_cannot_be_removed_saves_and_stops(scene: Scene, tmp_path: Path) -> None:
    run = tmp_path / "run"

    def listen(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 5:
            (run / ".stop").mkdir()

    for _ in range(2):  # as long as it lies there
        with pytest.raises(StoppedError):
            train(run, scene.settings, listen=listen)
        assert find_checkpoints(run)[-1].name == "step-00000005"
    (run / ".stop").rmdir()
    scene.finish(run)


def test_a_stop_of_another_user_saves_and_stops(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def listen(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 5:
            (run / ".stop").touch()

    with monkeypatch.context() as patch:
        forbid_removing(patch, ".stop")
        for _ in range(2):  # as long as it lies there
            with pytest.raises(StoppedError):
                train(run, scene.settings, listen=listen)
            assert find_checkpoints(run)[-1].name == "step-00000005"
    (run / ".stop").unlink()
    scene.finish(run)


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([signal.SIGTERM], 75),
        ([signal.SIGINT], 130),
        ([signal.SIGUSR1], 75),
        ([signal.SIGHUP], 75),
        ([signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM], 75),
    ],
    ids=["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP", "a scheduler"],
)
def test_a_signal_ends_a_run_cleanly(
    scene: Scene, tmp_path: Path, numbers: list[signal.Signals], code: int
) -> None:
    run = tmp_path / "run"
    command = scene.start(run)
    command.wait_for_step(run, 4)
    for number in numbers:
        command.send(number)
    ended = command.end()
    assert ended.code == code, ended.err
    assert ended.problem.startswith("after step ")
    assert ended.hint == "run the same command again to resume"
    newest = find_checkpoints(run)[-1].name
    assert int(newest.removeprefix("step-")) == told_of(run)[-1]["step"]
    scene.finish(run)


def test_a_signal_reaches_a_run_that_was_started_from_python(scene: Scene, tmp_path: Path) -> None:
    run = tmp_path / "run"

    def listen(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(StoppedError, match="after step 5 of 60"):
        train(run, scene.settings, listen=listen)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    scene.finish(run)


def test_kills_at_any_moment_lose_nothing(scene: Scene, tmp_path: Path) -> None:
    run, source = tmp_path / "run", random.Random(5)
    for number in range(KILLS):
        command = scene.start(run)
        command.wait_for_step(run, 1 + 15 * number)
        time.sleep(source.uniform(0, 0.1))
        command.send(signal.SIGKILL)
        assert command.end().code == -signal.SIGKILL
    scene.finish(run)


def die_in(function: Callable[..., object], calls: int) -> Callable[..., object]:
    """The function, of which one call does half its work and ends as a kill would."""
    left = iter(range(calls, -1, -1))

    def dying(*arguments: object) -> object:
        if next(left, 1):
            return function(*arguments)
        path = arguments[0]
        assert isinstance(path, Path)
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    return dying


@pytest.mark.parametrize("calls", [0, 1, 4, 5])
def test_a_kill_inside_a_checkpoint_leaves_the_one_before(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_tensors", die_in(checkpoints.write_tensors, calls))
        patch.setattr(checkpoints, "_remove", lambda _folder: None)  # the dead clear nothing away
        with pytest.raises(KeyboardInterrupt):
            run_heard(run, scene.settings)
    assert len(find_checkpoints(run)) == calls // 2
    half = run / "checkpoints" / hidden_in(run)[0]
    half.rename(half.with_name(f".{half.name.split('.')[1]}.4711.tmp"))  # as of another process
    scene.finish(run)


def test_a_file_size_limit_stands_in_for_a_full_disk(scene: Scene, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = scene.start(run, file_limit_bytes=40_000).end()
    assert ended.code == 1
    assert "step-00000007" in ended.problem
    assert "optimizer.safetensors" in ended.problem or "model.safetensors" in ended.problem
    assert find_checkpoints(run) == []
    assert hidden_in(run) == []
    scene.finish(run)


def test_a_kill_between_a_checkpoint_and_its_mention_tells_steps_once(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loops, "prune", die)
        with pytest.raises(KeyboardInterrupt):
            run_heard(run, scene.settings)
    assert [one.name for one in find_checkpoints(run)] == ["step-00000007"]
    scene.finish(run)


def test_leftovers_of_a_killed_start_are_cleared(scene: Scene, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / ".lowtide").mkdir(parents=True)
    (run / f".{RUN_NAME}.4711.tmp").write_bytes(b"{")
    (run / ".log.jsonl.4711.tmp").write_bytes(b"{")
    (run / "tokenizer").mkdir()
    scene.finish(run)
