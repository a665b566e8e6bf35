"""A comparison of ways: the table for people, all figures with `--json`, and what is said while it runs."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TextIO, TypeAlias

from lowtide.report.results import print_json, print_rows, say
from lowtide.units import printable

Table: TypeAlias = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A title, a header, and rows of words under it."""

_LINE_SECONDS = 10.0
_WIDE = 80
_OUTCOME = 1
"""The column that may be long: it is told below the others where the table would be too wide."""
_ENDING = re.compile(r"too slow|\w+")


def show_comparison(
    rows: Sequence[tuple[str, str]],
    tables: Sequence[Table],
    remarks: Sequence[str],
    record: Mapping[str, object],
    *,
    as_json: bool,
) -> None:
    """The end of a comparison. A table is its title, its header and its rows."""
    if as_json:
        print_json(record)
        return
    print_rows(rows)
    for title, header, lines in tables:
        for line in ("", title, *lay_out(header, lines)):
            say(line)
    for line in ("", *remarks):
        say(line)


def lay_out(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns: the first two to the left, figures to the right.

    Too wide for a terminal of 80 columns, an outcome that is more than its first word is told below its row;
    still too wide, the last column as well.
    """
    lines = _aligned([header, *rows])
    if max(map(len, lines)) <= _WIDE:
        return lines
    short = [[*row[:_OUTCOME], _ending(row), *row[_OUTCOME + 1 :]] for row in rows]
    lines = _aligned([header, *short])
    too_wide = max(map(len, lines)) > _WIDE
    if too_wide:
        lines = _aligned([row[:-1] for row in (header, *short)])
    told = [lines[0]]
    for row, line in zip(rows, lines[1:], strict=True):
        told.append(line)
        if row[_OUTCOME] != _ending(row):
            told += _below(row[_OUTCOME])
        if too_wide:
            told += _below(f"{header[-1]}: {row[-1]}")
    return told


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
def show_passing_lines(stream: TextIO | None = None) -> Iterator[Callable[[str, bool], None]]:
    """Says a line; a passing one is written over on a terminal, and told now and then elsewhere."""
    out = sys.stderr if stream is None else stream
    is_terminal = _can_write_over(out)
    last = monotonic()

    def tell(line: str, passing: bool) -> None:
        nonlocal last
        if not line and not is_terminal:  # there is nothing to write over
            return
        if passing and not is_terminal and monotonic() - last < _LINE_SECONDS:
            return
        last, line = monotonic(), printable(line)
        with suppress(OSError, ValueError):  # whoever read along has gone
            out.write(
                f"\r\x1b[2K{line[: _columns() - 1] if passing else line}" if is_terminal else line
            )
            out.write("" if passing and is_terminal else "\n")
            out.flush()

    try:
        yield tell
    finally:
        if is_terminal:
            with suppress(OSError, ValueError):
                out.write("\r\x1b[2K")
                out.flush()


def _can_write_over(stream: TextIO) -> bool:
    if not stream.isatty():
        return False
    from rich.console import Console

    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns
