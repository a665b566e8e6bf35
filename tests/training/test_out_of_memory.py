"""A card that is full halves parts, never steps; where nothing helps, what was learnt is saved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lowtide.errors import DoesNotFitError, StoppedError
from lowtide.events import Stop
from lowtide.memory.budget import choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.model.gpt import GPT
from lowtide.stages import guard_memory
from lowtide.stages.follow_run import RunGuard
from lowtide.training import loop as room
from lowtide.training.checkpoint import find_checkpoints, step_of
from lowtide.training.evaluate import evaluate
from lowtide.training.gpu_memory import GpuUse
from lowtide.training.settings import TrainSettings
from lowtide.training.step import StepUnderWay, start_step
from lowtide.units import GIB, MIB
from tests.training.small_runs import Heard, make_settings, make_tokens, run_heard, tensors_of


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokens(tmp_path_factory.mktemp("loop") / "tokens")


def steps_kept(run: Path) -> list[int]:
    return [step_of(one) for one in find_checkpoints(run)]


class SmallCard:
    """Runs out of memory with more than so many windows at a time, from a step on.

    It does so on the way back of a step's last part, when gradients of the others are there already.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, holds: int, since: int = 0) -> None:
        self.holds, self.since = holds, since
        monkeypatch.setattr(room, "start_step", self._start)

    def _start(
        self,
        model: GPT,
        optimizer: torch.optim.Optimizer,
        settings: TrainSettings,
        step: int,
        batch: tuple[Tensor, Tensor],
        **more: object,
    ) -> StepUnderWay | None:
        parts = iter(range(-(-len(batch[0]) // settings.micro_batch) - 1, -1, -1))

        def fill(_: Tensor) -> None:
            if next(parts) == 0 and step >= self.since and settings.micro_batch > self.holds:
                raise torch.OutOfMemoryError("CUDA out of memory")

        hook = model.final_norm.bias.register_hook(fill)
        try:
            return start_step(model, optimizer, settings, step, batch, **more)  # type: ignore[arg-type]
        finally:
            hook.remove()


@pytest.mark.parametrize("micro_batch", [8, 5, 4])
def test_out_of_memory_halves_the_parts_and_not_the_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro_batch: int
) -> None:
    settings = make_settings(data, micro_batch=micro_batch, steps=6)
    _, wanted = run_heard(tmp_path / "whole", settings)
    SmallCard(monkeypatch, holds=2, since=3)
    result, heard = run_heard(tmp_path / "run", settings)
    assert result.micro_batch == 2
    assert heard.losses == pytest.approx(wanted.losses, rel=1e-5)
    told = [one for one in heard.notes if "out of memory" in one]
    assert f"{micro_batch} windows" in told[0]
    assert "still has 128 tokens" in told[0]


def test_memory_that_is_gone_ends_the_run_with_a_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(data, steps=12, checkpoint_every=5)
    whole, _ = run_heard(tmp_path / "whole", settings)
    card = SmallCard(monkeypatch, holds=0, since=7)
    monkeypatch.setattr(room, "steps_ahead", lambda _: 1)
    with pytest.raises(StoppedError, match="after step 7 of 12") as stopped:
        run_heard(tmp_path / "run", settings)
    assert "nvidia-smi" in stopped.value.remedy
    assert steps_kept(tmp_path / "run")[-1] == 7
    card.holds = 3
    run_heard(tmp_path / "run", settings)
    assert tensors_of(tmp_path / "run") == tensors_of(whole.folder)


def test_what_never_fits_is_told_as_that(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SmallCard(monkeypatch, holds=0)
    with pytest.raises(DoesNotFitError, match="a micro-batch of 1 windows does not fit"):
        run_heard(tmp_path / "run", make_settings(data))
    assert steps_kept(tmp_path / "run") == []


def test_an_evaluation_that_does_not_fit_is_cut_smaller_too(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wanted = run_heard(tmp_path / "whole", make_settings(data))

    def evaluate_small(
        model: GPT, val: object, settings: TrainSettings, ranks: object, **more: object
    ) -> float | None:
        if settings.micro_batch > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return evaluate(model, val, settings, ranks, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(room, "evaluate", evaluate_small)
    result, heard = run_heard(tmp_path / "run", make_settings(data))
    assert result.micro_batch == 1
    assert heard.evaluations == pytest.approx(wanted.evaluations, rel=1e-5)


def test_an_optimizer_that_does_not_fit_is_not_tried_twice(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its weights may have moved: nothing of them may be saved."""
    steps = iter(range(100))
    move = torch.optim.AdamW.step

    def fill(optimizer: torch.optim.AdamW) -> None:
        move(optimizer)
        if next(steps) == 7:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.optim.AdamW, "step", fill)
    with pytest.raises(DoesNotFitError, match="the optimizer's step does not fit"):
        run_heard(tmp_path / "run", make_settings(data, checkpoint_every=3))
    assert steps_kept(tmp_path / "run")[-1] == 6


def test_a_sample_that_fails_is_told_and_costs_nothing(data: Path, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def fail(*_: object) -> str:
        raise torch.OutOfMemoryError("CUDA out of memory\nand more")

    monkeypatch.setattr("lowtide.training.sample_text.Sampler.__call__", fail)
    settings = make_settings(data, steps=7, sample_every=3, checkpoint_every=7)
    result, heard = run_heard(tmp_path / "run", settings)
    assert result.state.step == 7
    told = [one for one in heard.notes if one.endswith("written: CUDA out of memory")]
    assert len(told) == 3


def test_a_budget_that_is_used_up_is_not_met_again_by_the_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command would stop at the same place."""
    monkeypatch.setattr(guard_memory, "_SAMPLE_SECONDS", 0.0)

    def look(memory: str) -> Stop | None:
        budget = choose_budget(memory, machine_limit())
        return RunGuard(lambda: None, budget, Heard(), micro_batch=8).look()

    stop = look("16MiB")
    assert stop is not None
    flags = dict(re.findall(r"--([a-z-]+) (\w+)", stop.remedy))
    assert flags["micro-batch"] == "4"
    assert look(flags["memory"]) is None


def test_others_on_the_gpu_are_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = [(5 * GIB, 6 * GIB), (4 * GIB, 6 * GIB), (200 * MIB, 6 * GIB), (190 * MIB, 6 * GIB)]
    looks = iter(GpuUse(total=12 * GIB, free=free, ours=ours) for free, ours in uses)
    monkeypatch.setattr(guard_memory, "_SAMPLE_SECONDS", 0.0)
    heard, limit = Heard(), machine_limit()
    budget = choose_budget(None, limit, generous=True)
    guard = RunGuard(lambda: None, budget, heard, read_gpu=lambda: next(looks))
    found = []
    for _ in uses:
        guard.look()
        found.append(len(heard.notes))
    assert found == [0, 0, 1, 1]
    assert "others have taken 4.8 GiB" in heard.notes[0]
