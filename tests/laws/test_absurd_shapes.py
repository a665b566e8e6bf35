"""A record or a config that promises a giant is refused before torch is asked for its memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.errors import DoesNotFitError, VerificationError
from lowtide.model.shape import ModelShape
from lowtide.settings import TrainRequest
from lowtide.stages.export_model import export_model
from lowtide.stages.initial_weights import find_initial_weights
from lowtide.stages.open_model import open_model
from lowtide.stages.resolve_run import resolve_run
from lowtide.training.build import empty_model
from tests.model.small import lively
from tests.runs import TINY, add_checkpoint, begin_run

ABSURD = {
    "width": replace(TINY, width=1 << 20),
    "layers": replace(TINY, layers=1 << 30),
    "vocabulary": replace(TINY, vocabulary_size=1 << 30),
    "context": replace(TINY, context=1 << 30),
}
NAMES = {
    "width": "n_embd",
    "layers": "n_layer",
    "vocabulary": "vocab_size",
    "context": "n_positions",
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = begin_run(tmp_path / "run")
    add_checkpoint(folder, lively(TINY, seed=0), 1000)
    return folder


@pytest.mark.parametrize("what", ABSURD)
def test_a_run_record_of_absurd_size_is_refused(run: Path, tmp_path: Path, what: str) -> None:
    begin_run(run, shape=ABSURD[what])
    for way in (
        lambda: open_model(run, device="cpu"),
        lambda: export_model(run, tmp_path / "out"),
        lambda: find_initial_weights(run),
        lambda: find_initial_weights(run / "checkpoints/step-00001000"),
    ):
        with pytest.raises(VerificationError):
            way()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ABSURD)
def test_a_config_of_absurd_size_is_refused(run: Path, tmp_path: Path, what: str) -> None:
    out = export_model(run, tmp_path / "out")
    assert open_model(out, device="cpu").model.shape == TINY
    assert find_initial_weights(out).shape == TINY
    config = json.loads((out / "config.json").read_text())
    config[NAMES[what]] = getattr(ABSURD[what], {"vocabulary": "vocabulary_size"}.get(what, what))
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(VerificationError):
        open_model(out, device="cpu")
    with pytest.raises(VerificationError):
        find_initial_weights(out)


def test_weights_that_no_memory_holds_are_not_asked_for() -> None:
    """Where the files are as large as the record says."""
    with pytest.raises(DoesNotFitError):
        empty_model(replace(TINY, width=1 << 20), "cpu")


def test_a_run_of_absurd_size_is_not_gone_on_with(run: Path, tmp_path: Path) -> None:
    begin_run(run, shape=ABSURD["width"])
    with pytest.raises(DoesNotFitError):
        resolve_run(tmp_path / "data", run, TrainRequest(), restart=False, environment={})


def test_an_honest_run_still_opens(run: Path) -> None:
    assert isinstance(open_model(run, device="cpu").model.shape, ModelShape)
