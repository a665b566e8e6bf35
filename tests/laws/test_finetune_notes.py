"""What a person is told before and while a start is trained further."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide import Tokenizer, make_plan
from lowtide.events import Note
from lowtide.model.needs import peak_of_run
from lowtide.plan.machine import cpu_machine
from lowtide.plan.plan_file import plan_text, read_plan
from lowtide.stages.initial_weights import find_initial_weights
from lowtide.stages.resolve_run import ResolvedRun
from lowtide.stages.smoke import ChildReport, _judge, _shortened, smoke
from tests.laws.finetuning import save_theirs
from tests.learnt import learnt
from tests.model.small import lively
from tests.runs import TINY, add_checkpoint, begin_run
from tests.training.small_examples import PACKED, make_example_tokens
from tests.training.small_runs import SHAPE, VOCABULARY, make_settings, run_heard

EVEN = math.log(VOCABULARY)
SETTINGS = make_settings(Path("somewhere"), **PACKED, steps=40, epochs=2, init="a start")
RUN = ResolvedRun(folder=Path("nowhere"), settings=SETTINGS)


def problems(*losses: float) -> tuple[str, ...]:
    found = ChildReport(
        micro_batch=3, losses=list(losses), seconds=[0.1] * len(losses), checkpoint_seconds=0.1
    )
    return _judge(RUN, _shortened(SETTINGS), found).problems


def test_a_start_that_knows_something_is_no_problem() -> None:
    assert problems(*[1.9, 2.0, 1.8] * 3, 2.1) == ()
    assert problems(*[EVEN + 0.1] * 10) == ()
    assert "worse than even guesses" in problems(*[EVEN + 3] * 10)[0]
    assert "rises" in problems(2.0, *[3.5] * 9)[0]
    assert problems(math.nan, *[2.0] * 9) != ()


@pytest.mark.slow
def test_the_smoke_test_takes_ten_steps_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data = make_example_tokens(tmp_path / "tokens")
    settings = replace(SETTINGS, data=str(data), init=str(save_theirs(tmp_path / "start")))
    report = smoke(ResolvedRun(folder=tmp_path / "run", settings=settings))
    assert report.problems == ()
    assert not (tmp_path / "run").exists()


def test_another_tokenizer_is_noticed_whatever_file_it_lies_in(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run")
    add_checkpoint(run, lively(TINY), 1)
    start = find_initial_weights(run)
    same, other = tmp_path / "same", tmp_path / "other"
    Tokenizer.load(run / "tokenizer").save(same)
    Tokenizer.from_byte_pairs(learnt("cl100k")).save(other)
    assert not start.differ_in_tokens(same)
    assert start.differ_in_tokens(other)
    assert not start.differ_in_tokens(tmp_path / "nothing")


def test_a_plan_for_examples_says_so_and_counts_the_mask(tmp_path: Path) -> None:
    data = make_example_tokens(tmp_path / "tokens")
    plan = make_plan(data, context=16, machine=cpu_machine({}))
    assert (plan.settings.windows, plan.settings.attention) == ("document", "document")
    assert "of them learnt" in str(plan)
    (tmp_path / "plan.toml").write_text(plan_text(plan))
    assert read_plan(tmp_path / "plan.toml") == plan.settings
    with_mask = peak_of_run(SHAPE, 8, plan.settings.step_kind)
    without = peak_of_run(SHAPE, 8, replace(plan.settings.step_kind, attention="window"))
    assert with_mask.activations > without.activations


@pytest.mark.parametrize(("context", "cut"), [(8, 60), (12, 20), (14, 10), (16, 0), (64, 0)])
def test_only_examples_that_are_longer_than_a_window_are_a_warning(
    tmp_path: Path, context: int, cut: int
) -> None:
    """They were made for windows of 64 tokens, and none has more than 16."""
    data = make_example_tokens(tmp_path / "tokens")
    shape = replace(SHAPE, context=context)
    settings = make_settings(data, **PACKED, shape=shape, steps=1, batch_tokens=8 * context)
    _, heard = run_heard(tmp_path / "run", settings)
    warnings = [
        one.text for one in heard.events if isinstance(one, Note) and one.level == "warning"
    ]
    assert [text.split()[0] for text in warnings if "--too-long" in text] == [str(cut)] * (cut > 0)
