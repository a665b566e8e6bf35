"""The demo as it is read: a few lines for each stage, and at the end where everything lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lowtide.report.results import print_json, print_rows, say


def show_stage(lines: Sequence[str]) -> None:
    """One stage that is done."""
    for line in lines:
        say(line)


def show_end(
    rows: Sequence[tuple[str, str]], record: Mapping[str, object], *, as_json: bool
) -> None:
    """Where everything lies, and what to do next."""
    if as_json:
        print_json(record)
        return
    say("")
    print_rows(rows)


def show_cleaned(folder: Path, removed: Sequence[Path], *, as_json: bool) -> None:
    """What `--clean` took away."""
    if as_json:
        print_json({"folder": folder, "removed": list(removed)})
        return
    say(f"removed {', '.join(map(str, removed)) or 'what was begun'}")
    if folder.exists():
        say(f"{folder} stays: it holds files that are not the demo's")


def tell_waiting() -> None:
    """A demo that was killed left its command running."""
    say("note: waiting for a command of an earlier start to end", err=True)
