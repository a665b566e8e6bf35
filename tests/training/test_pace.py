"""Tokens that are told were trained on: a last step that is short counts as what it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import StoppedError
from lowtide.events import Stepped
from lowtide.show.training_results import show_trained
from lowtide.stages.train import train
from lowtide.training.pace import Pace
from lowtide.training.settings import TrainSettings, steps_for, windows_for
from lowtide.training.step import StepResult
from lowtide.units import format_count
from tests.training.small_runs import (
    SHAPE,
    Heard,
    make_settings,
    make_tokens,
    run_heard,
    tensors_of,
    told_of,
)

EPOCHS = 1.3
SEEN = StepResult(loss=1.0, gradient_norm=1.0, learning_rate=1e-3, skipped=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokens(tmp_path_factory.mktemp("pace") / "tokens")


def short_at_the_end(data: Path) -> tuple[TrainSettings, int]:
    """A run over some epochs whose last step is not full, and its windows."""
    settings = make_settings(data, epochs=EPOCHS, checkpoint_every=3, evaluate_every=0)
    count = TokenDataset(data, context=SHAPE.context).window_count
    windows, per_step = windows_for(EPOCHS, window_count=count), settings.windows_per_step
    assert windows % per_step, "else the test shows nothing"
    steps = steps_for(EPOCHS, window_count=count, windows_per_step=per_step)
    return replace(settings, steps=steps), windows


def test_a_short_last_step_counts_as_what_it_was(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, windows = short_at_the_end(data)
    result, heard = run_heard(tmp_path / "run", settings)
    told = [event for event in heard.events if isinstance(event, Stepped)]
    full = settings.batch_tokens
    tokens = windows * SHAPE.context
    assert [one.tokens for one in told[:-1]] == [full * one.step for one in told[:-1]]
    assert told[-1].tokens == tokens < full * settings.steps
    last = tokens - told[-2].tokens
    assert told[-1].tokens_per_second == pytest.approx(last / told[-1].seconds)
    assert told[-1].epoch == pytest.approx(EPOCHS, rel=0.01)
    for run in (result, run_heard(tmp_path / "run", settings)[0]):
        show_trained(run, settings, as_json=False)
        assert f"{format_count(tokens)} tokens" in capsys.readouterr().out


def test_a_resumed_run_goes_on_with_the_count(data: Path, tmp_path: Path) -> None:
    settings, windows = short_at_the_end(data)
    run_heard(tmp_path / "whole", settings)
    heard = Heard()
    with pytest.raises(StoppedError):
        train(
            tmp_path / "run",
            settings,
            listen=heard,
            should_stop=lambda: "terminated" if len(heard.losses) >= 5 else None,
        )
    _, later = run_heard(tmp_path / "run", settings)
    first = next(event for event in later.events if isinstance(event, Stepped))
    assert first.tokens_per_second * first.seconds == pytest.approx(settings.batch_tokens)
    assert told_of(tmp_path / "run") == told_of(tmp_path / "whole")
    assert told_of(tmp_path / "run")[-1]["tokens"] == windows * SHAPE.context
    assert tensors_of(tmp_path / "run") == tensors_of(tmp_path / "whole")


def test_the_speed_of_the_last_steps_is_of_their_own_tokens() -> None:
    """Full steps of 8 windows in 1 s and a last one of 2 in a quarter of it go equally fast."""
    settings = make_settings(Path("somewhere"), steps=6)
    pace = Pace(
        settings, torch.device("cpu"), epoch_windows=42, world_size=1, position=0, peak_flops=None
    )
    for step in range(1, 6):
        pace.describe(step, SEEN, 1.0, position=8 * step)
    pace.describe(6, SEEN, 0.25, position=42)
    assert pace.tokens_per_second == pytest.approx(8 * SHAPE.context)
