"""What is told of one is told in the singular."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from lowtide.events import Event, Note
from lowtide.stages.inbox.train_on_inbox import opening_lines
from lowtide.stages.start_run import _start_line
from lowtide.stages.train import _open_data
from lowtide.training.settings import TrainSettings
from tests.training.small_examples import PACKED, make_example_tokens
from tests.training.small_runs import SHAPE, make_settings

STEPS = [(1, "after 1 step"), (2, "after 2 steps")]


def settings_with(warmup_steps: int) -> TrainSettings:
    return make_settings(Path("somewhere"), warmup_steps=warmup_steps, init="a start")


@pytest.mark.parametrize(("warmup_steps", "told"), STEPS)
def test_the_line_about_a_start(warmup_steps: int, told: str) -> None:
    assert f"{told}, " in _start_line(settings_with(warmup_steps))


@pytest.mark.parametrize(("warmup_steps", "told"), STEPS)
def test_the_lines_about_an_inbox(warmup_steps: int, told: str) -> None:
    run = SimpleNamespace(settings=settings_with(warmup_steps), machine_name="cpu")
    reading = SimpleNamespace(examples="chat")
    inbox = SimpleNamespace(settings=reading, folder="batches", least_bytes=1)
    lines = opening_lines(cast(Any, SimpleNamespace(run=run, inbox=inbox)))
    assert any(line.endswith(told) for line in lines)


@pytest.mark.parametrize("context", [2000, 200])
def test_the_warning_about_few_windows(context: int, tmp_path: Path) -> None:
    """Examples are packed, so that a long window takes all that are held out."""
    data, heard = make_example_tokens(tmp_path / "tokens"), list[Event]()
    shape = replace(SHAPE, context=context)
    settings = make_settings(data, **{**PACKED, "shape": shape, "batch_tokens": 8 * context})
    train_set, val_set = _open_data(settings, heard.append)
    assert val_set is not None
    few = "1 window is" if context == 2000 else f"{val_set.window_count} windows are"
    notes = [event.text for event in heard if isinstance(event, Note)]
    assert any(note.startswith(f"only {few} held out") for note in notes), notes
    train_set.close()
    val_set.close()
