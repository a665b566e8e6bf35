"""A run holds the same memory after a hundred steps and after thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.journal import LOG_NAME, read_journal
from lowtide.model.shape import ModelShape
from tests.training.small_runs import VOCABULARY, Command, make_settings, make_tokens, write_plan

MB = 1_000_000
STEPS = 5000
SHAPE = ModelShape(layers=1, heads=1, width=8, context=8, vocabulary_size=VOCABULARY)


@pytest.mark.slow
def test_private_memory_after_100_and_5000_steps_is_the_same(tmp_path: Path) -> None:
    data, run = make_tokens(tmp_path / "tokens"), tmp_path / "run"
    settings = make_settings(
        data,
        shape=SHAPE,
        batch_tokens=SHAPE.context,
        micro_batch=1,
        steps=STEPS,
        evaluate_every=300,
        evaluate_windows=4,
        checkpoint_every=400,
    )
    plan = write_plan(tmp_path / "plan.toml", settings)
    command = ("train", data, "--plan", plan, "--out", run, "--no-smoke", "--quiet")
    done = Command(tmp_path / "said", *command).end()
    assert done.code == 0, done.err
    held = {
        int(str(record["step"])): int(str(record["private_bytes"]))
        for record in read_journal(run / LOG_NAME)
        if record["event"] == "step"
    }
    assert len(held) == STEPS
    assert abs(held[STEPS] - held[100]) < 5 * MB, (held[100], held[1000], held[STEPS])
    assert max(list(held.values())[100:]) - held[100] < 5 * MB
