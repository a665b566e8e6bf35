"""From a run to its page on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.journal import LOG_NAME
from lowtide.report.page.document import page_html
from lowtide.report.page.facts import RunFacts
from lowtide.report.page.read_run import read_run
from lowtide.report.page.verdict import Verdict, judge_run
from lowtide.storage.publish import storage_errors, write_atomically

PAGE_NAME = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPage:
    """Where the page stands, and what it is about."""

    path: Path
    page_bytes: int
    facts: RunFacts
    verdict: Verdict


def write_page(run: Path, out: Path | None = None) -> WrittenPage:
    """Write the page of a run: of a folder with a log, or of a timeline. Only the journal is read."""
    journal = _find_journal(run)
    page = _choose_page(run, journal) if out is None else out
    if page.is_dir() or (page.exists() and not page.is_file()):
        raise UsageError(f"{page} is no file to be replaced", remedy="pass `--out FILE`")
    page = page.resolve()
    if page == journal.resolve():
        raise UsageError(
            f"the page would replace the log {journal}", remedy="pass another file as `--out`"
        )
    facts = read_run(journal)
    content = page_html(facts, _name(run, journal)).encode("utf-8")
    write_atomically(page, content)
    return WrittenPage(path=page, page_bytes=len(content), facts=facts, verdict=judge_run(facts))


def _find_journal(run: Path) -> Path:
    with storage_errors(run, doing="read"):
        if run.is_dir():
            run = run / LOG_NAME
        if run.is_file():
            return run
    raise UsageError(
        f"there is no log {run}",
        remedy="name the folder of a run of tokenize, train-tokenizer or train, or a timeline of watch",
    )


def _choose_page(run: Path, journal: Path) -> Path:
    if run.is_dir() or journal.name == LOG_NAME:
        return journal.with_name(PAGE_NAME)
    return journal.with_suffix(".html")


def _name(run: Path, journal: Path) -> str:
    """What a person calls the run: its folder, or the timeline."""
    if run.is_dir() or journal.name == LOG_NAME:
        return journal.resolve().parent.name
    return journal.stem
