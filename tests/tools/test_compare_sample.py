"""A sample is the input's beginning at document borders, in sixteen parts that every size is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide.errors import DataError
from lowtide.source.find_inputs import find_inputs
from lowtide.tools.compare.sample import PARTS, TextSample, take_sample

DOCUMENTS = [
    f"Document {number}\nspeaks of tides and {number * 7919 % 9973} boats.\n" * (1 + number % 9)
    for number in range(4000)
]
TOTAL = sum(len(text) for text in DOCUMENTS)


def write(folder: Path, kind: str) -> Path:
    path = folder / f"corpus.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    elif kind == "parquet":
        pq.write_table(pa.table({"text": DOCUMENTS}), path, row_group_size=500)
    else:
        path.write_text("<|endoftext|>".join(DOCUMENTS))
    return path


def sample(path: Path, folder: Path, size: int, separator: str = "<|endoftext|>") -> TextSample:
    folder.mkdir()
    return take_sample(find_inputs([str(path)]), folder, sample_bytes=size, separator=separator)


def texts(found: TextSample, sixteenths: int = PARTS) -> list[str]:
    files, _ = found.first(sixteenths)
    return [json.loads(line)["text"] for path in files for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_the_sample_is_the_beginning_of_the_documents(tmp_path: Path, kind: str) -> None:
    found = sample(write(tmp_path, kind), tmp_path / "sample", TOTAL // 2)
    taken = texts(found)
    assert taken == DOCUMENTS[: len(taken)]
    assert found.documents == len(taken)
    assert found.total_bytes == sum(map(len, taken))
    assert TOTAL // 2 <= found.total_bytes < TOTAL // 2 + 1000
    assert found.full_bytes == pytest.approx(TOTAL, rel=0.06)
    assert not found.is_everything
    assert found.cut_documents == 0


def test_a_quarter_is_a_quarter(tmp_path: Path) -> None:
    found = sample(write(tmp_path, "jsonl"), tmp_path / "sample", TOTAL // 2)
    for sixteenths in (1, 2, 4, 16):
        part = texts(found, sixteenths)
        assert part == DOCUMENTS[: len(part)]
        assert found.first(sixteenths)[1] == sum(map(len, part))
        assert found.first(sixteenths)[1] == pytest.approx(
            found.total_bytes * sixteenths / PARTS, rel=0.05
        )


def test_an_input_smaller_than_the_sample_is_taken_whole_and_in_even_parts(tmp_path: Path) -> None:
    found = sample(write(tmp_path, "txt"), tmp_path / "sample", 50 * TOTAL)
    assert texts(found) == DOCUMENTS
    assert found.is_everything
    assert found.full_bytes == TOTAL
    assert max(found.text_bytes) < 2 * min(found.text_bytes)


def test_one_long_text_is_cut_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("".join(DOCUMENTS))
    found = sample(path, tmp_path / "sample", TOTAL // 2, separator="file")
    assert "".join(DOCUMENTS).startswith("".join(texts(found)))
    assert found.cut_documents >= found.documents > PARTS
    assert max(found.text_bytes) < 2 * min(found.text_bytes)


def test_what_is_no_text_is_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"some good words and \xff\xfe two bad bytes\n" * 5000)
    found = sample(path, tmp_path / "sample", 100_000, separator="line")
    assert found.replaced > 0
    assert "�" in texts(found)[0]


def test_an_empty_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match="holds no text"):
        sample(tmp_path / "empty.txt", tmp_path / "sample", 1000)


def test_of_long_documents_nothing_is_lost_and_no_two_are_joined(tmp_path: Path) -> None:
    long = ["".join(DOCUMENTS[at : at + 700]) for at in range(0, 4000, 700)]
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in long))
    found = sample(path, tmp_path / "sample", 50 * TOTAL)
    taken = texts(found)
    assert "".join(taken) == "".join(DOCUMENTS)
    assert all(any(text in document for document in long) for text in taken)
    assert found.cut_documents == len(taken) - len(long) > 0
