"""How long an input is, in the unit its cursors count (bytes of text, or rows), and where its tail begins."""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.errors import UsageError
from lowtide.source import parquet_footer, read_arrow
from lowtide.source.blocks import Cursor
from lowtide.source.byte_stream import explain_open_errors, open_stream
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.source.read_parquet import explain_damage
from lowtide.units import GIB, MIB


def measure_extent(file: InputFile) -> int:
    """Bytes of a text or JSONL file once decompressed, rows of a Parquet or Arrow file.

    A footer or a size is enough, but for compressed text, which is unpacked and dropped.
    """
    if file.kind is InputKind.PARQUET:
        with explain_open_errors(file), explain_damage(file.path):
            return parquet_footer.count_rows(file)
    if file.kind is InputKind.ARROW:
        with explain_damage(file.path):
            return read_arrow.count_rows(file)
    if not file.compression:
        return file.size_bytes
    total = 0
    with open_stream(file, position=0, window_limit_bytes=GIB) as stream:
        while data := stream.read(MIB):
            total += len(data)
    return total


def find_tail(inputs: Sequence[InputFile], fraction: float) -> Cursor:
    """Where the last `fraction` of the inputs begins, by their stored size.

    All inputs weigh as many bytes as they have on disk; inside the one that the border falls into, the
    border lies at the same share of its rows or of its text.
    """
    if any(file.is_stdin for file in inputs):
        raise UsageError(
            "the last part of standard input is not known before its end",
            remedy="pass `--split hash` or `--val 0`, or write the text to a file first",
        )
    total = sum(file.size_bytes for file in inputs)
    before = total - int(total * fraction)
    for index, file in enumerate(inputs):
        if before < file.size_bytes:
            extent = measure_extent(file)
            return Cursor(file=index, position=extent * before // file.size_bytes)
        before -= file.size_bytes
    return Cursor(file=len(inputs), position=0)
