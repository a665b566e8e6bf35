"""An error about reserved text names the file and the line or row that holds it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowtide.errors import ReservedTextError
from tests.commands import lowtide

MARK = "\0<|lowtide-document|>"


def write(folder: Path, name: str, held: str) -> str:
    """A file whose third line or row holds a text; its place, as people count."""
    texts = ["first", "", f"has {held} inside", "last"]
    path = folder / name
    if name.endswith(".txt"):
        path.write_text("\n".join(texts))
        return f"{path}, line 3"
    if ".jsonl" in name:
        data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return f"{path}, line 3"
    table = pa.table({"text": texts})
    if name.endswith(".parquet"):
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    return f"{path}, row 3"


@pytest.mark.parametrize("name", ["b.txt", "b.jsonl", "b.jsonl.gz", "b.parquet", "b.arrow"])
@pytest.mark.parametrize(
    ("command", "held"),
    [
        (("tokenize",), MARK),
        (("tokenize", "--special-in-text", "fail"), "<|endoftext|>"),
        (("train-tokenizer", "--vocab-size", "300"), MARK),
    ],
    ids=["delimiter", "special token", "train-tokenizer"],
)
def test_reserved_text_is_named_by_file_and_row(
    tmp_path: Path, name: str, command: tuple[str, ...], held: str
) -> None:
    (tmp_path / "a.txt").write_text("nothing to see\n" * 9)
    place = write(tmp_path, name, held)
    words = (command[0], tmp_path / "a.txt", tmp_path / name, "--out", tmp_path / "out")
    done = lowtide(*words, *command[1:])
    assert done.code == ReservedTextError.exit_code
    assert done.problem.startswith(f"{place}: ")


def test_standard_input_is_named_without_a_line(tmp_path: Path) -> None:
    done = lowtide("tokenize", "-", "--out", tmp_path / "out", stdin=f"a {MARK} b".encode())
    assert done.code == ReservedTextError.exit_code
    assert done.problem.startswith("standard input: ")
