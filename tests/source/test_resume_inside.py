"""Going on deep inside a row group, many batches after its start."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.source.readings import MARK, assert_laws, joined, reading


def test_reading_goes_on_many_batches_into_a_row_group(tmp_path: Path) -> None:
    rows = [f"row {number} " + "of words " * (number % 7) for number in range(120)]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": rows}), path, row_group_size=60, use_dictionary=False)
    assert assert_laws([path], reading(), resumes=8).text == joined(rows, MARK)
