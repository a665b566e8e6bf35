"""Several ranks fine-tune as one does: one start for all, and a last step that leaves some without rows."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lowtide import TokenDataset
from lowtide.training.settings import steps_for
from tests.laws.finetuning import save_theirs
from tests.training.small_examples import PACKED, make_examples, write
from tests.training.small_runs import (
    SHAPE,
    Command,
    losses_told,
    make_settings,
    run_heard,
    told_of,
    write_plan,
)

CLOSE = {"rel": 1e-5}
LENGTHS = [9, 16, 11, 12, 10, 15] * 3
"""18 windows: of the last step's two, rank 1 has none."""


def test_two_ranks_have_the_losses_of_one_to_the_very_last_step(tmp_path: Path) -> None:
    data = write(tmp_path / "tokens", make_examples(LENGTHS), make_examples(LENGTHS, seed=7))
    windows = TokenDataset(data, context=SHAPE.context).window_count
    assert windows == len(LENGTHS)
    settings = make_settings(
        data,
        **PACKED,
        epochs=1,
        steps=steps_for(1, window_count=windows, windows_per_step=8),
        evaluate_every=1,
        init=str(save_theirs(tmp_path / "start")),
    )
    run_heard(tmp_path / "alone", settings)
    plan = write_plan(tmp_path / "plan.toml", settings)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    run = tmp_path / "run"
    ranks = [
        Command(
            tmp_path / f"said-{rank}",
            *("train", data, "--plan", plan, "--out", run, "--quiet"),
            environment={**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]
    ended = [one.end() for one in ranks]
    assert [one.code for one in ended] == [0, 0], ended
    assert losses_told(run) == pytest.approx(losses_told(tmp_path / "alone"), **CLOSE)
    evaluations = [
        [record["loss"] for record in told_of(folder, "evaluation")]
        for folder in (run, tmp_path / "alone")
    ]
    assert evaluations[0] == pytest.approx(evaluations[1], **CLOSE)
