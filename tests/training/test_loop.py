"""The loop does what is due, keeps what is good, and leaves cleanly when it has to."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import InterruptedRun, LowtideError, StoppedError
from lowtide.events import Evaluated, Event, Stepped, StopReason
from lowtide.model.gpt import GPT
from lowtide.stages import guard_memory, open_run
from lowtide.stages.train import train
from lowtide.storage.sealed_json import read_sealed
from lowtide.training import loop as room
from lowtide.training import watch_loss
from lowtide.training.checkpoint import find_checkpoints, resume_hint, step_of
from lowtide.training.step import StepUnderWay, start_step
from tests.training.small_runs import (
    Heard,
    make_settings,
    make_tokens,
    run_heard,
    tensors_of,
    told_of,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokens(tmp_path_factory.mktemp("loop") / "tokens")


def steps_kept(run: Path) -> list[int]:
    return [step_of(one) for one in find_checkpoints(run)]


class Poison:
    """Makes steps not finite, as a broken card would: the result and nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: range) -> None:
        self.steps = steps
        self.last_started = 0
        monkeypatch.setattr(room, "start_step", self._take)

    def _take(self, model: GPT, *others: object, **more: object) -> StepUnderWay | None:
        step = self.last_started = others[2]  # type: ignore[assignment]
        if step not in self.steps:
            return start_step(model, *others, **more)  # type: ignore[arg-type]
        hook = model.final_norm.bias.register_hook(lambda gradient: gradient * math.nan)
        try:
            return start_step(model, *others, **more)  # type: ignore[arg-type]
        finally:
            hook.remove()


def test_everything_is_done_when_it_is_due_and_at_the_end(data: Path, tmp_path: Path) -> None:
    settings = make_settings(data, steps=11, evaluate_every=4, checkpoint_every=5)
    result, heard = run_heard(tmp_path / "run", settings)
    assert result.state.step == 11
    assert [e.step for e in heard.events if isinstance(e, Stepped)] == list(range(1, 12))
    assert [e.step for e in heard.events if isinstance(e, Evaluated)] == [4, 8, 11]
    assert {5, 10, 11} <= set(heard.saved_steps)
    assert steps_kept(tmp_path / "run")[-1] == 11
    again, silence = run_heard(tmp_path / "run", settings)
    assert again.already_done
    assert silence.losses == []


def test_steps_tell_of_tokens_epochs_and_rates(data: Path, tmp_path: Path) -> None:
    _, heard = run_heard(tmp_path / "run", make_settings(data, steps=30, checkpoint_every=0))
    told = [event for event in heard.events if isinstance(event, Stepped)]
    assert [event.tokens for event in told] == [128 * step for step in range(1, 31)]
    assert told[-1].epoch == pytest.approx(30 * 8 / 161, rel=0.02)
    assert all(event.private_bytes > 0 and event.seconds > 0 for event in told)
    assert told[-1].seconds_left == 0


def test_without_checkpoints_on_the_way_there_is_one_at_the_end(data: Path, tmp_path: Path) -> None:
    settings = make_settings(data, steps=9, checkpoint_every=0, evaluate_every=2)
    _, heard = run_heard(tmp_path / "run", settings)
    assert heard.saved_steps == [9]


def test_the_time_that_is_left_forgets_the_steps_that_compiled(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, slow = [0.0], Poison(monkeypatch, range(0))

    def clock() -> float:
        now[0] += 100.0 if slow.last_started < 2 else 0.5
        return now[0]

    monkeypatch.setattr(room.time, "perf_counter", clock)
    settings = make_settings(data, steps=9, checkpoint_every=0, evaluate_every=0)
    _, heard = run_heard(tmp_path / "run", settings)
    left = [event.seconds_left for event in heard.events if isinstance(event, Stepped)]
    assert left[0] > 500
    assert max(left[2:]) < 10


def test_evaluating_and_saving_are_no_part_of_a_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.01
        return now[0]

    def slow_evaluation(*_: object, **__: object) -> float:
        now[0] += 1000.0
        return 4.0

    monkeypatch.setattr(room.time, "perf_counter", clock)
    monkeypatch.setattr(room, "evaluate", slow_evaluation)
    _, heard = run_heard(tmp_path / "run", make_settings(data, steps=9, evaluate_every=2))
    seconds = [event.seconds for event in heard.events if isinstance(event, Stepped)]
    assert max(seconds) < 1


def test_the_best_is_saved_and_kept_whenever_it_comes(data: Path, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    losses = iter([5.0, 4.0, 4.5, 4.6, 4.7, 4.8])
    monkeypatch.setattr(room, "evaluate", lambda *_, **__: next(losses))
    settings = make_settings(data, steps=18, evaluate_every=3, checkpoint_every=5)
    result, heard = run_heard(tmp_path / "run", settings)
    assert (result.state.best_loss, result.state.best_step) == (4.0, 6)
    assert heard.saved_steps == [3, 5, 6, 10, 15, 18]
    assert steps_kept(tmp_path / "run") == [6, 15, 18]


def test_an_evaluation_that_is_not_finite_is_never_the_best(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([math.nan, 4.0, -math.inf])
    monkeypatch.setattr(room, "evaluate", lambda *_, **__: next(losses))
    settings = make_settings(data, steps=6, evaluate_every=2, checkpoint_every=6)
    result, _ = run_heard(tmp_path / "run", settings)
    assert (result.state.best_loss, result.state.best_step) == (4.0, 4)


@pytest.mark.parametrize(
    ("reason", "kind", "code"),
    [("interrupted", InterruptedRun, 130), ("terminated", StoppedError, 75)],
)
def test_a_stop_saves_and_says_how_to_go_on(
    data: Path, tmp_path: Path, reason: str, kind: type[StoppedError], code: int
) -> None:
    heard = Heard()
    with pytest.raises(kind) as stopped:
        train(
            tmp_path / "run",
            make_settings(data),
            listen=heard,
            should_stop=lambda: reason if len(heard.losses) >= 7 else None,  # type: ignore[arg-type, return-value]
        )
    assert stopped.value.exit_code == code
    assert "after step 7 of 24" in stopped.value.problem
    assert "same command" in stopped.value.remedy
    assert steps_kept(tmp_path / "run")[-1] == 7


def test_a_stop_where_a_checkpoint_is_due_takes_one(data: Path, tmp_path: Path) -> None:
    heard = Heard()
    with pytest.raises(StoppedError, match="after step 10 of 24"):
        train(
            tmp_path / "run",
            make_settings(data, evaluate_every=5),
            listen=heard,
            should_stop=lambda: "terminated" if len(heard.losses) >= 10 else None,
        )
    assert heard.saved_steps == [5, 10]
    assert any(note.startswith("stopping: asked to end") for note in heard.notes)


def test_a_run_on_the_cpu_leaves_the_gpu_alone(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, asked = TokenDataset.loader, []

    def loader(*given: object, **more: object) -> object:
        asked.append(more.get("device"))
        return make(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(TokenDataset, "loader", loader)
    run_heard(tmp_path / "run", make_settings(data, steps=2))
    assert asked == ["cpu"]


def test_a_stop_at_the_last_step_is_a_finished_run_once_it_is_evaluated(
    data: Path, tmp_path: Path
) -> None:
    heard = Heard()
    settings = make_settings(data)

    def should_stop() -> StopReason | None:
        return "terminated" if len(heard.losses) >= 24 else None

    with pytest.raises(StoppedError):
        train(tmp_path / "run", settings, listen=heard, should_stop=should_stop)
    done = train(tmp_path / "run", settings)
    assert (done.state.step, done.steps, done.already_done) == (24, 0, False)
    assert train(tmp_path / "run", settings).already_done
    heard.events.clear()
    plain = replace(settings, evaluate_every=0)
    done = train(tmp_path / "plain", plain, listen=heard, should_stop=should_stop)
    assert done.state.step == 24


def test_reading_steps_late_changes_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, which has the next step before the last one is read: two of them skipped, and a stop."""
    settings = make_settings(data, steps=17, evaluate_every=4, checkpoint_every=5)
    monkeypatch.setattr(
        open_run,
        "make_optimizer",
        lambda model, settings: torch.optim.AdamW(model.parameters(), fused=True),
    )
    poison, found = Poison(monkeypatch, range(5, 7)), []
    for ahead in (0, 1, 3):
        monkeypatch.setattr(room, "steps_ahead", lambda _, ahead=ahead: ahead)
        out, heard = tmp_path / f"ahead-{ahead}", Heard()
        with pytest.raises(StoppedError, match="after step 10"):
            train(
                out,
                settings,
                listen=heard,
                should_stop=lambda: "terminated" if poison.last_started == 10 else None,
            )
        result, after = run_heard(out, settings)
        assert result.state.skipped_steps == 2
        found.append((told_of(out), tensors_of(out), heard.losses + after.losses))
    assert len(found[0][2]) == 17
    assert found[0] == found[1] == found[2]


def test_a_step_that_is_not_finite_is_skipped_told_and_passed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that was poisoned at steps 3 and 4 is the run that never had them, but for its clock."""
    Poison(monkeypatch, range(3, 5))
    settings = make_settings(data, steps=10, checkpoint_every=5)
    result, heard = run_heard(tmp_path / "run", settings)
    assert result.state.skipped_steps == 2
    assert sum("skipped" in note for note in heard.notes) == 2
    told = told_of(tmp_path / "run")
    assert [record["skipped"] for record in told] == [False] * 3 + [True] * 2 + [False] * 5
    assert told[3]["gradient_norm"] == "nan"
    newest = find_checkpoints(tmp_path / "run")[-1]
    loader = read_sealed(newest / "state.json")["loader"]
    assert isinstance(loader, dict)
    assert loader["position"] == 10 * 8
    assert all(torch.isfinite(torch.tensor(heard.losses)))


def test_a_run_that_diverged_names_the_checkpoint_before_it_did(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved at 20 and 40; bad from 43 on; the checkpoint of 60 waits until all is well, which it never is."""
    monkeypatch.setattr(watch_loss, "LONGEST_SPIKE_STEPS", 25)

    class Bad(Heard):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if isinstance(event, Stepped) and event.step == 42:
                with torch.no_grad():
                    models[0].token_embedding.weight.mul_(100)

    models: list[GPT] = []
    built = room.Loop.__init__

    def remember(self: room.Loop, run: room.OpenRun, *others: object) -> None:
        models.append(run.model)
        built(self, run, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(room.Loop, "__init__", remember)
    settings = make_settings(data, steps=99, checkpoint_every=20, evaluate_every=0)
    heard = Bad()
    with pytest.raises(LowtideError) as ended:
        train(tmp_path / "run", settings, listen=heard)
    assert "rose from" in ended.value.problem
    assert heard.saved_steps == [20, 40]
    assert "step-00000040: the same command goes on" in ended.value.remedy


def test_a_checkpoint_that_waited_for_a_spike_to_end_is_taken_then(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    spiking = property(lambda _: 7 <= len(heard.losses) <= 9)
    monkeypatch.setattr(room.LossWatch, "is_spiking", spiking)
    settings = make_settings(data, steps=14, checkpoint_every=4, evaluate_every=0)
    train(tmp_path / "run", settings, listen=heard)
    assert heard.saved_steps == [4, 10, 12, 14]


def test_later_checkpoints_than_the_last_good_one_are_named(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    told = resume_hint(tmp_path, before=15)
    assert "last good checkpoint is step-00000010: remove step-00000020, step-00000030 in" in told
    assert "no checkpoint is older than step 5" in resume_hint(tmp_path, before=5)
    assert "step-00000030: the same command" in resume_hint(tmp_path, before=99)


def test_too_many_end_the_run_and_its_advice_works(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(data, steps=45, checkpoint_every=5, evaluate_every=0)
    with monkeypatch.context() as patch:
        Poison(patch, range(12, 45))
        with pytest.raises(LowtideError) as ended:
            run_heard(tmp_path / "run", settings)
    assert "20 of the last 100 steps" in ended.value.problem
    newest = find_checkpoints(tmp_path / "run")[-1]
    assert f"{newest.name}: the same command goes on" in ended.value.remedy
    done, _ = run_heard(tmp_path / "run", settings)
    assert done.state.step == 45
    assert done.state.skipped_steps >= 1


def test_weights_that_overflowed_are_never_kept_as_a_checkpoint(data: Path, tmp_path: Path) -> None:
    settings = make_settings(data, steps=40, checkpoint_every=5, evaluate_every=0)
    run_heard(tmp_path / "undisturbed", settings)

    class Overflow(Heard):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if len(self.losses) == 12 and isinstance(event, Stepped):
                with torch.no_grad():
                    models[0].final_norm.bias.fill_(math.inf)

    models: list[GPT] = []
    built = room.Loop.__init__

    def remember(self: room.Loop, run: room.OpenRun, *others: object) -> None:
        models.append(run.model)
        built(self, run, *others)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room.Loop, "__init__", remember)
        with pytest.raises(LowtideError) as ended:
            train(tmp_path / "run", settings, listen=Overflow())
    assert "not finite" in ended.value.problem
    assert "step-00000010" in ended.value.remedy
    assert steps_kept(tmp_path / "run") == [5, 10]
    run_heard(tmp_path / "run", settings)
    assert tensors_of(tmp_path / "run") == tensors_of(tmp_path / "undisturbed")


def test_a_budget_that_is_spent_ends_the_run_with_a_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_memory, "_SAMPLE_SECONDS", 0.0)
    with pytest.raises(StoppedError) as stopped:
        run_heard(tmp_path / "run", make_settings(data, micro_batch=8), memory="64MiB")
    assert "after step 1 of 24" in stopped.value.problem
    assert "MiB" in stopped.value.problem
    assert steps_kept(tmp_path / "run") == [1]
    done, _ = run_heard(tmp_path / "run", make_settings(data))
    assert done.state.step == 24


def test_no_val_split_means_no_evaluation(data: Path, tmp_path: Path) -> None:
    settings = make_settings(data, steps=6, val_split="nowhere")
    result, heard = run_heard(tmp_path / "run", settings)
    assert heard.evaluations == []
    assert result.state.best_loss is None
