"""From a run to its page on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.journal import LOG_NAME
from lowtide.report.page.document import page_html
from lowtide.report.page.facts import RunFacts
from lowtide.report.page.page_place import check_place, log_errors, write_whole
from lowtide.report.page.read_run import read_run
from lowtide.report.page.told import NAME_A_RUN
from lowtide.report.page.verdict import Verdict, judge_run, needs_explanation
from lowtide.units import printable

PAGE_NAME = "report.html"
MANIFEST_NAMES = ("lowtide.json", "lowtide-run.json", "lowtide-tokenizer.json")
"""Of a dataset, a run of training and a tokenizer, finished or begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPage:
    """Where the page stands, and what it is about."""

    path: Path
    page_bytes: int
    facts: RunFacts
    verdict: Verdict


def write_page(
    run: Path, out: Path | None = None, *, explain: Callable[[], str] = str
) -> WrittenPage:
    """Write the page of a run: of a folder with a log, or of a timeline. Only the journal is read.

    `explain` tells of a death that the journal does not tell; it is asked only then.
    """
    journal = _find_journal(run)
    page = check_place(_choose_page(run, journal) if out is None else out)
    with log_errors(journal):
        facts = read_run(journal)
    verdict = judge_run(facts, explain() if needs_explanation(facts) else "")
    content = page_html(facts, _name(run, journal), verdict).encode("utf-8")
    write_whole(page, content)
    return WrittenPage(path=page, page_bytes=len(content), facts=facts, verdict=verdict)


def _find_journal(run: Path) -> Path:
    shown = printable(os.fspath(run))
    with log_errors(run):
        if run.is_file():
            return run
        if not run.is_dir():
            raise UsageError(f"there is no file or folder {shown}", remedy=NAME_A_RUN)
        if (run / LOG_NAME).is_file():
            return run / LOG_NAME
        if any((run / name).is_file() for name in MANIFEST_NAMES):
            raise UsageError(
                f"{shown} has no log: it was made by a version of lowtide that kept none",
                remedy="name another run; the same command with another `--out` would keep a log",
            )
    raise UsageError(f"{shown} has no log: only runs of lowtide keep one", remedy=NAME_A_RUN)


def _choose_page(run: Path, journal: Path) -> Path:
    if run.is_dir() or journal.name == LOG_NAME:
        return journal.with_name(PAGE_NAME)
    return journal.with_suffix(".html")


def _name(run: Path, journal: Path) -> str:
    """What a person calls the run: its folder, or the timeline."""
    if run.is_dir() or journal.name == LOG_NAME:
        return journal.resolve().parent.name
    return journal.stem
