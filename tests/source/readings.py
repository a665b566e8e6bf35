"""Settings and files for the tests of the source package, and readers so plain that they are surely right."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from lowtide.source.blocks import LISTED_BAD_ROWS
from lowtide.source.find_inputs import InputFile, find_inputs
from lowtide.source.safe_cuts import CutRule
from lowtide.source.separators import default_delimiter
from lowtide.source.stream import (
    FIRST_PIECE_BYTES,
    BadRow,
    Block,
    Cursor,
    ReadSettings,
    read_blocks,
)
from lowtide.units import MIB

MARK = b"\x00<|lowtide-document|>"
START = Cursor(file=0, position=0)
BLOCK_SIZES = (64, 1000, 70_000, MIB)


def reading(**changes: object) -> ReadSettings:
    """Settings for a test: 1 MiB blocks, gpt2 cuts, the delimiter that goes with the separator."""
    settings = ReadSettings(
        delimiter=MARK,
        block_bytes=MIB,
        document_limit_bytes=4 * MIB,
        cut_rule=CutRule(pattern="gpt2"),
    )
    if "separator" in changes and "delimiter" not in changes:
        changes["delimiter"] = default_delimiter(str(changes["separator"]))
    return replace(settings, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a stream holds, whatever its blocks."""

    text: bytes
    held_out: bytes
    documents: int
    bad: tuple[BadRow, ...]
    bad_count: int
    empty_count: int


def contents_of(blocks: Sequence[Block]) -> Contents:
    """Lay blocks end to end."""
    return Contents(
        text=b"".join(block.text for block in blocks if not block.held_out),
        held_out=b"".join(block.text for block in blocks if block.held_out),
        documents=sum(block.document_count for block in blocks),
        bad=tuple(row for block in blocks for row in block.bad)[:LISTED_BAD_ROWS],
        bad_count=sum(block.bad_count for block in blocks),
        empty_count=sum(block.empty_count for block in blocks),
    )


def read_all(inputs: list[InputFile], settings: ReadSettings, start: Cursor = START) -> list[Block]:
    """All blocks, each checked for what holds of every block."""
    blocks = list(read_blocks(inputs, settings, start=start))
    total_bytes = sum(file.size_bytes for file in inputs)
    inside = start.within > 0
    for block in blocks:
        assert block.document_count == block.text.count(settings.delimiter)
        assert block.text_bytes == len(block.text) - block.document_count * len(settings.delimiter)
        assert 0 <= block.input_done_bytes <= total_bytes
        assert block.bad_count >= len(block.bad)
        unfinished = block.text.rpartition(settings.delimiter)[2]
        if unfinished and not (inside and block.document_count == 0):
            assert len(unfinished) >= FIRST_PIECE_BYTES
        assert (block.after.within > 0) == (bool(unfinished) or (inside and not block.text))
        block.text.decode()
        inside = block.after.within > 0
    assert not inside
    return blocks


def assert_laws(paths: Sequence[Path], settings: ReadSettings, *, resumes: int = 6) -> Contents:
    """The stream does not depend on the block size, and goes on from any block's end."""
    inputs = find_inputs([str(path) for path in paths])
    contents = contents_of(read_all(inputs, settings))
    for block_bytes in BLOCK_SIZES:
        sized = replace(settings, block_bytes=block_bytes)
        blocks = read_all(inputs, sized)
        assert contents_of(blocks) == contents, block_bytes
        for index in _spread(len(blocks), resumes):
            cursor = Cursor.from_list(json.loads(json.dumps(blocks[index].after.as_list())))
            other = replace(
                settings, block_bytes=BLOCK_SIZES[(index + block_bytes) % len(BLOCK_SIZES)]
            )
            resumed = read_all(inputs, other, cursor)
            assert contents_of([*blocks[: index + 1], *resumed]) == contents, (block_bytes, cursor)
    return contents


def _spread(count: int, wanted: int) -> list[int]:
    """Some of `count` indices: the first, the last, and others between them."""
    step = max(1, count // wanted)
    return sorted({*range(0, count, step), count - 1} - {-1})


def joined(documents: Sequence[str], delimiter: bytes) -> bytes:
    """The text that documents should give, without the empty ones."""
    return b"".join(document.encode() + delimiter for document in documents if document)


def plain_split(text: str, separator: str) -> list[str]:
    """The documents of a text by the plainest means."""
    if separator == "file":
        return [text]
    if separator == "line":
        lines = (text if text.endswith("\n") or not text else text + "\n").split("\n")[:-1]
        return [line.removesuffix("\r") for line in lines]
    if separator != "blank-line":
        return text.split(separator)
    documents: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip(" \t\r\v\f"):
            documents[-1].append(line)
        elif documents[-1]:
            documents.append([])
    return ["\n".join(lines).removesuffix("\r") for lines in documents if lines]


def write_text(path: Path, text: str | bytes) -> Path:
    """A text file, compressed if its name says so."""
    data = text.encode() if isinstance(text, str) else text
    if path.suffix == ".gz":
        half = len(data) // 2  # two members, as `cat a.gz b.gz` makes
        data = gzip.compress(data[:half], 1) + gzip.compress(data[half:], 1)
    elif path.suffix == ".zst":
        half = len(data) // 2
        pack = zstandard.ZstdCompressor(level=1).compress
        data = pack(data[:half]) + pack(data[half:])
    path.write_bytes(data)
    return path


def write_rows(path: Path, rows: Sequence[str | None], *, group_rows: int = 3) -> Path:
    """The rows in the format the path's name asks for."""
    table = pa.table({"id": list(range(len(rows))), "text": pa.array(rows, pa.string())})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group_rows)
    elif path.name.endswith("file.arrow"):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=group_rows)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=group_rows)
    else:
        lines = [json.dumps({"id": 1, "text": row}, ensure_ascii=False) for row in rows]
        write_text(path, "".join(line + "\n" for line in lines))
    return path


def read(path: Path, **changes: object) -> list[bytes]:
    """The text of all blocks."""
    return [block.text for block in read_all(find_inputs([str(path)]), reading(**changes))]
