"""However large the input, reading holds a few blocks, and what would not fit is refused before it is read."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lowtide.errors import DataError
from lowtide.source.find_inputs import find_inputs
from lowtide.source.stream import read_blocks
from lowtide.units import KIB, MIB
from tests.source.readings import MARK, START, read, reading, write_rows, write_text


def test_a_value_larger_than_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet", ["small", "x" * (5 * MIB)])
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match=r"row group 0.*5\.0 MiB") as caught:
        read(path, document_limit_bytes=MIB)
    assert "--memory" in caught.value.remedy
    assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < MIB
    assert len(b"".join(read(path, document_limit_bytes=16 * MIB))) > 5 * MIB


def test_a_dictionary_does_not_unfold_into_memory(tmp_path: Path) -> None:
    """Six hundred rows of 100 KB that are one value in the file: 60 MB out of a few hundred bytes."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["words and more " * 7000] * 600}), path, row_group_size=600)
    settings = reading(document_limit_bytes=2 * MIB, block_bytes=256 * KIB)
    start = pa.total_allocated_bytes()
    peak = count = 0
    for block in read_blocks(find_inputs([str(path)]), settings, start=START):
        count += block.document_count
        peak = max(peak, pa.total_allocated_bytes() - start)
    assert path.stat().st_size < 100 * KIB
    assert count == 600
    assert peak < 8 * MIB


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst", "a.jsonl", "a.jsonl.gz"])
def test_what_cannot_be_cut_is_refused_before_memory_is_gone(tmp_path: Path, name: str) -> None:
    size = 24 * MIB
    text = b'{"text": "' + b"x" * size + b'"}\n' if "jsonl" in name else b"x" * size
    path = write_text(tmp_path / name, text)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"1\.0 MiB") as caught:
        read(path, document_limit_bytes=MIB, block_bytes=64 * KIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "--memory" in caught.value.remedy
    assert peak < 6 * MIB
    assert len(b"".join(read(path, document_limit_bytes=2 * size))) > size


@pytest.mark.parametrize("separator", ["file", "<|x|>", "line"])
def test_reading_holds_a_few_blocks_whatever_the_size(tmp_path: Path, separator: str) -> None:
    line = b"some words and then a separator<|x|>\n" if separator != "file" else b"some words\n"
    path = write_text(tmp_path / "a.txt", line * (16 * MIB // len(line)))
    inputs = find_inputs([str(path)])
    tracemalloc.start()
    settings = reading(separator=separator, block_bytes=256 * KIB)
    for _ in read_blocks(inputs, settings, start=START):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * MIB


def test_a_gzip_bomb_is_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"word " * (8 * MIB), 9))
    inputs = find_inputs([str(tmp_path / "a.txt.gz")])
    tracemalloc.start()
    total = sum(
        len(block.text)
        for block in read_blocks(inputs, reading(block_bytes=256 * KIB), start=START)
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 40 * MIB + len(MARK)
    assert peak < 2 * MIB


def test_a_large_zstd_window_is_refused(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=26)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = packer.compress(b"words " * 1000) + packer.flush()
    (tmp_path / "a.txt.zst").write_bytes(data)
    with pytest.raises(DataError, match=r"window of 64\.0 MiB"):
        read(tmp_path / "a.txt.zst", document_limit_bytes=MIB)
    assert read(tmp_path / "a.txt.zst", document_limit_bytes=64 * MIB)


def test_reading_rows_never_imports_pandas(tmp_path: Path) -> None:
    """Arrow imports pandas, 45 MiB, as soon as one of its scalars is made: none must be."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["one", "", None, "four", "one"] * 10}), path)
    code = f"""
import sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise SystemExit("pandas was imported")
sys.meta_path.insert(0, Wall())
import lowtide
lowtide.tokenize([{str(path)!r}], {str(tmp_path / "out")!r},
    lowtide.TokenizeSettings(bad_text="skip", val=0))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
