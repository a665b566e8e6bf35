"""The log of a long run stays small, and which steps it keeps does not depend on interruptions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lowtide.events import Note, Stepped
from lowtide.journal import LOG_NAME, read_journal, rewind
from lowtide.stages.follow_run import is_logged, keep_run_journal
from lowtide.training.run_folder import read_run_record
from lowtide.training.settings import TrainSettings
from tests.runs import begin_run

MILLION = 1_000_000


@pytest.fixture
def settings(tmp_path: Path) -> TrainSettings:
    run = begin_run(tmp_path / "other", with_tokenizer=False)
    found = read_run_record(run).settings
    return replace(found, steps=MILLION, evaluate_every=70_010, sample_every=0, checkpoint_every=0)


def step(number: int, *, skipped: bool = False) -> Stepped:
    return Stepped(
        step=number,
        steps=MILLION,
        loss=2.123456789012345,
        learning_rate=0.0005999999999999999,
        gradient_norm=0.7123456789012345,
        seconds=0.04012345678901234,
        tokens=number * 491_520,
        tokens_per_second=123456.78901234567,
        epoch=number / 7000,
        private_bytes=2_123_456_789,
        seconds_left=12345.678901234567,
        gpu_bytes=20_123_456_789,
        mfu=0.4123456789012345,
        skipped=skipped,
    )


def logged_steps(folder: Path) -> list[object]:
    return [one["step"] for one in read_journal(folder / LOG_NAME) if one["event"] == "step"]


def test_a_million_steps_take_ten_megabytes(tmp_path: Path, settings: TrainSettings) -> None:
    numbers = [*range(1, 10_001), *range(10_010, MILLION + 1, 10)]  # between them none is due
    thinned = [number for number in numbers if is_logged(step(number), settings)]
    with keep_run_journal(tmp_path, settings, lambda _: None, after_step=0) as follow:
        follow(step(1))
    line = len((tmp_path / LOG_NAME).read_bytes().splitlines()[1]) + 20
    assert len(thinned) * line < 10_000_000
    assert thinned[:10_000] == numbers[:10_000]
    assert {70_010, 140_020, MILLION} <= set(thinned)
    assert max(later - one for one, later in pairwise(thinned)) <= 200


def test_an_interrupted_run_keeps_the_same_steps(tmp_path: Path, settings: TrainSettings) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for folder, sessions in (
        (whole, [(9_990, 10_300)]),
        (parted, [(9_990, 10_111), (10_050, 10_300)]),
    ):
        folder.mkdir()
        for after, last in sessions:
            rewind(folder / LOG_NAME, after)
            with keep_run_journal(folder, settings, lambda _: None, after_step=after) as follow:
                for number in range(after + 1, last + 1):
                    follow(step(number))
    assert (
        logged_steps(whole)
        == logged_steps(parted)
        == [*range(9_991, 10_001), *range(10_020, 10_301, 20)]
    )


def test_a_skipped_step_and_one_with_a_warning_are_kept(
    tmp_path: Path, settings: TrainSettings
) -> None:
    heard: list[object] = []
    with keep_run_journal(tmp_path, settings, heard.append, after_step=10_000) as follow:
        for number in range(10_001, 10_010):
            follow(step(number, skipped=number == 10_003))
            if number == 10_006:
                follow(Note(text="the loss jumped", level="warning"))
                follow(Note(text="and again", level="warning"))
    assert logged_steps(tmp_path) == [10_003, 10_006]
    assert len(heard) == 11
