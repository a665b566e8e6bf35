"""What is told of one is told in the singular."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from lowtide.events import Event, Note
from lowtide.settings import TokenizeSettings
from lowtide.stages.resolve_run import ResolvedRun
from lowtide.stages.train import _open_data, opening_lines
from tests.training.small_examples import PACKED, make_example_tokens
from tests.training.small_runs import SHAPE, make_settings

STEPS = [(1, "after 1 step"), (2, "after 2 steps")]


@pytest.mark.parametrize(("warmup_steps", "told"), STEPS)
@pytest.mark.parametrize("of_inbox", [False, True])
def test_the_lines_before_a_run(warmup_steps: int, told: str, of_inbox: bool) -> None:
    settings = make_settings(Path("somewhere"), warmup_steps=warmup_steps, init="a start")
    inbox = SimpleNamespace(tokenize=TokenizeSettings(), folder="batches", least_bytes=1)
    run = ResolvedRun(folder=Path("run"), settings=settings)
    lines = list(opening_lines(replace(run, inbox=cast(Any, inbox)) if of_inbox else run))
    assert any(f"{told}, " in line for line in lines), lines
    assert any("1 epoch of each file" in line for line in lines) == of_inbox


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
