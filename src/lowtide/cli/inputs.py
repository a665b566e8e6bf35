"""What a newcomer may hand to `tokenize` and `train-tokenizer` by mistake, told before any work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from lowtide.cli.settings_file import is_file
from lowtide.errors import UsageError
from lowtide.units import printable

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_LOOKS_LIKE_ROWS = (".csv", ".tsv", ".json")
_MANIFEST = "lowtide.json"


def check_inputs(inputs: Sequence[str], *, quiet: bool) -> None:
    """UsageError for an address and for a folder of tokens; a note where rows are read as plain text."""
    for name in inputs:
        if _ADDRESS.match(name) and not is_file(Path(name)):
            raise UsageError(
                f"{name} is an address, and lowtide reads files",
                remedy="fetch it first, and name the file or the folder that it lies in",
            )
        if is_file(Path(name) / _MANIFEST):
            raise UsageError(
                f"{name} holds tokens already: it is a folder that `lowtide tokenize` wrote",
                remedy=f"name the text; `lowtide inspect {name}` shows what is in there, and "
                f"`lowtide train {name} --out RUN` trains on it",
            )
    rows = [name for name in inputs if Path(name).suffix.lower() in _LOOKS_LIKE_ROWS]
    if rows and not quiet:
        others = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        click.echo(
            f"note: {printable(rows[0])}{others} is read as plain text, marks and all; for the text of a "
            "column, write it as JSONL or Parquet and pass `--column`",
            err=True,
        )
