"""Going on deep inside a row group or record batch, many batches after its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.source.readings import MARK, assert_laws, joined, reading, write_rows


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "file.arrow"])
def test_reading_goes_on_many_batches_into_a_row_group(tmp_path: Path, name: str) -> None:
    rows = [f"row {number} " + "of words " * (number % 7) for number in range(120)]
    path = write_rows(tmp_path / name, rows, group_rows=60)
    assert assert_laws([path], reading(), resumes=8).text == joined(rows, MARK)
