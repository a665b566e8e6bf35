"""What `compare` and `demo` print: lines while they run, then the result for people or as JSON."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TextIO, TypeAlias

from lowtide.show.progress import terminal_of
from lowtide.show.results import say, show_rows
from lowtide.units import printable

Table: TypeAlias = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A title, a header, and rows of words under it."""

_CLEAR_LINE = "\r\x1b[2K"
_LINE_SECONDS = 10.0
_WIDE = 80
_OUTCOME = 1
"""The column that may be long: where the table would be too wide, it moves below its row."""
_ENDING = re.compile(r"too slow|\w+")


def show_comparison(
    rows: Sequence[tuple[str, str]],
    tables: Sequence[Table],
    remarks: Sequence[str],
    record: Mapping[str, object],
    *,
    as_json: bool,
) -> None:
    """Print the result of a comparison."""
    show_rows(rows, record, as_json=as_json)
    if as_json:
        return
    for title, header, lines in tables:
        for line in ("", title, *lay_out(header, lines)):
            say(line)
    for line in ("", *remarks):
        say(line)


def lay_out(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns: the first two to the left, figures to the right.

    If the table is too wide for 80 columns, an outcome of more than its first word moves below its row. If it
    is still too wide, so does the last column.
    """
    lines = _aligned([header, *rows])
    if max(map(len, lines)) <= _WIDE:
        return lines
    short = [[*row[:_OUTCOME], _ending(row), *row[_OUTCOME + 1 :]] for row in rows]
    lines = _aligned([header, *short])
    too_wide = max(map(len, lines)) > _WIDE
    if too_wide:
        lines = _aligned([row[:-1] for row in (header, *short)])
    found = [lines[0]]
    for row, line in zip(rows, lines[1:], strict=True):
        found.append(line)
        if row[_OUTCOME] != _ending(row):
            found += _below(row[_OUTCOME])
        if too_wide:
            found += _below(f"{header[-1]}: {row[-1]}")
    return found


def _ending(row: Sequence[str]) -> str:
    """`died` of `died at the limit after 53 %`."""
    found = _ENDING.match(row[_OUTCOME])
    return found[0] if found else row[_OUTCOME]


def _below(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDE, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at <= _OUTCOME else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


@contextmanager
def show_passing_lines(
    stream: TextIO | None = None, *, quiet: bool = False
) -> Iterator[Callable[[str, bool], None]]:
    """A function that prints a line. A passing line is overwritten on a terminal, and rare elsewhere."""
    if quiet:
        yield lambda _line, _passing: None
        return
    out = sys.stderr if stream is None else stream
    is_terminal = terminal_of(out) is not None
    last = monotonic()

    def tell(line: str, passing: bool) -> None:
        nonlocal last
        if not line and not is_terminal:  # there is nothing to write over
            return
        if passing and not is_terminal and monotonic() - last < _LINE_SECONDS:
            return
        last, line = monotonic(), printable(line)
        with suppress(OSError, ValueError):  # nobody reads any more
            if is_terminal and passing:
                columns = shutil.get_terminal_size().columns
                out.write(f"{_CLEAR_LINE}{line[: columns - 1]}")
            else:
                out.write(f"{_CLEAR_LINE if is_terminal else ''}{line}\n")
            out.flush()

    try:
        yield tell
    finally:
        if is_terminal:
            with suppress(OSError, ValueError):
                out.write(_CLEAR_LINE)
                out.flush()
