"""The budget holds for every form of Arrow and Parquet: some cases of `bench/budget_inputs.py`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.budget_inputs import FAILED, Case, all_cases, run_case

NAMED = (
    "arrow file, plain, string, one batch of 400 MB",
    "arrow file, plain, a dictionary of 20000000 entries",
    "arrow stream, plain, a dictionary of 2000000 entries",
    "hostile file, zstd, a batch of 400 MB in few bytes",
    "hostile stream, 15,000 entries of metadata that are one of 20 KB",
    "parquet DELTA_BYTE_ARRAY, zstd, pages 1.0, 20000 rows",
    "dry-run: parquet DELTA_BYTE_ARRAY, zstd, pages 2.0, 20000 rows",
    "dry-run: hostile parquet, pages 1.0, one value of 30 MB among small ones",
    "parquet DELTA_BYTE_ARRAY, zstd, lengths of 32 bits in one miniblock",
    "hostile parquet, a column name of 300 MB",
    "dry-run: hostile parquet, a column name of 300 MB",
)
"""What once was killed for its memory."""


def chosen_cases() -> list[Case]:
    cases = all_cases()
    named = [case for case in cases if case.name in NAMED]
    assert len(named) == len(NAMED)
    return [*named, *random.Random(17).sample(cases, 7)]


@pytest.mark.slow
@pytest.mark.cgroup
@pytest.mark.parametrize("case", chosen_cases(), ids=lambda case: case.name)
def test_an_input_is_read_right_or_refused_inside_its_budget(tmp_path: Path, case: Case) -> None:
    outcome, result, _ = run_case(case, tmp_path)
    assert outcome not in FAILED, result.stderr
