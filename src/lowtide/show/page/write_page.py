"""From a run to its page on disk, and what `lowtide report` prints about it.

A page replaces nothing but a page, and every error has a remedy that fits a page.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.errors import StorageError, UsageError
from lowtide.journal import LOG_NAME, REPORT_NAME
from lowtide.show.page.document import GENERATOR, page_html
from lowtide.show.page.facts import RunFacts
from lowtide.show.page.read_run import NAME_A_RUN, read_run
from lowtide.show.page.verdict import Outcome, judge_run, needs_explanation
from lowtide.show.results import print_json, say
from lowtide.storage.publish import storage_errors, write_atomically
from lowtide.units import printable

if TYPE_CHECKING:
    from lowtide.guard.why.verdict import Verdict

_MANIFESTS = ("lowtide.json", "lowtide-run.json", "lowtide-tokenizer.json")
"""Manifests of a dataset, a training run and a tokenizer, finished or not."""
_FIRST_BYTES = 4096
"""The mark of a page of ours lies within these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPage:
    """Where the page lies, and what it says."""

    path: Path
    page_bytes: int
    facts: RunFacts
    outcome: Outcome

    def __repr__(self) -> str:
        return f"<WrittenPage {self.path}: {self.outcome.word}>"


def write_page(
    run: Path, out: Path | None = None, *, explain: Callable[[], Verdict] | None = None
) -> WrittenPage:
    """Write the page of a run: of a folder with a log, or of a timeline. Only the journal is read.

    `explain` asks `why` for its verdict. It is called only if the journal does not say that the run is done.
    """
    journal = _find_journal(run)
    of_folder = run.is_dir() or journal.name == LOG_NAME
    if out is None:
        out = journal.with_name(REPORT_NAME) if of_folder else journal.with_suffix(".html")
    page = _check_place(out)
    with _log_errors(journal):
        facts = read_run(journal)
    verdict = explain() if explain is not None and needs_explanation(facts) else None
    outcome = judge_run(facts, verdict)
    name = journal.resolve().parent.name if of_folder else journal.stem
    content = page_html(facts, name, outcome).encode("utf-8")
    with _page_errors(page):
        write_atomically(page, content)
    return WrittenPage(path=page, page_bytes=len(content), facts=facts, outcome=outcome)


def show_page(page: WrittenPage, *, as_json: bool) -> None:
    """Print where the page is, or with `--json` what it says."""
    if not as_json:
        say(os.fsdecode(page.path))
        return
    facts, counts, outcome = page.facts, page.facts.counts, page.outcome
    print_json(
        {
            "path": page.path,
            "page_bytes": page.page_bytes,
            "kind": facts.kind,
            "outcome": facts.end.outcome if facts.end else None,
            "verdict": f"{outcome.word}: {outcome.sentence}",
            "problem": (facts.end.problem if facts.end else "") or None,
            "remedy": (facts.end.remedy if facts.end else "") or None,
            "records": facts.records,
            "unread_lines": facts.unread_lines,
            "sessions": facts.sessions.count,
            "seconds": round(facts.worked_seconds, 3),
            "peak_private_bytes": facts.peaks.private_bytes,
            "budget_bytes": facts.budget_bytes,
            "peak_gpu_bytes": facts.peaks.gpu_bytes,
            "tokens": counts.tokens,
            "step": counts.step,
            "loss": counts.last_loss,
            "best_validation_loss": counts.best_evaluation[0] if counts.best_evaluation else None,
        }
    )


def _find_journal(run: Path) -> Path:
    shown = _shown(run)
    with _log_errors(run):
        if run.is_file():
            return run
        if not run.is_dir():
            raise UsageError(f"there is no file or folder {shown}", remedy=NAME_A_RUN)
        if (run / LOG_NAME).is_file():
            return run / LOG_NAME
        if any((run / name).is_file() for name in _MANIFESTS):
            raise UsageError(
                f"{shown} has no log: it was made by a version of lowtide that kept none",
                remedy="name another run; the same command with another `--out` would keep a log",
            )
    raise UsageError(f"{shown} has no log: only runs of lowtide keep one", remedy=NAME_A_RUN)


def _check_place(page: Path) -> Path:
    """The place with links followed; UsageError if the page would replace what is not a page of ours."""
    if os.fspath(page) == "-":
        raise UsageError(
            "a page is written to a file, not to stdout",
            remedy="pass `--out FILE.html`; `--json` prints what the page says",
        )
    with _page_errors(page):
        try:
            page = page.resolve()
        except RuntimeError as error:  # links that lead in a circle, before Python 3.13
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
        shown = _shown(page)
        if not page.name.lower().endswith(".html"):
            raise UsageError(
                f"{shown} is not a name for a page",
                remedy="pass an `--out` that ends in .html",
            )
        if page.exists() and not _is_page(page):
            raise UsageError(
                f"{shown} exists and is not a page of lowtide",
                remedy="pass another `--out`, a file that ends in .html, or move that one away",
            )
    return page


def _is_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return GENERATOR in file.read(_FIRST_BYTES)


@contextmanager
def _log_errors(log: Path) -> Iterator[None]:
    """Disk errors while a log is read, with a remedy that fits."""
    try:
        with storage_errors(log, doing="read"):
            yield
    except StorageError as error:
        remedy = f"make sure that {_shown(log)} can be read, then run the command again"
        raise StorageError(printable(error.problem), remedy=remedy) from error.__cause__


@contextmanager
def _page_errors(page: Path) -> Iterator[None]:
    """Disk errors while a page is written, with a remedy that fits: a page is not resumed but made again."""
    try:
        with storage_errors(page):
            yield
    except StorageError as error:
        cause, folder = error.__cause__, _shown(page.parent)
        match cause.errno if isinstance(cause, OSError) else None:
            case errno.ENOENT:
                remedy = f"make the folder {folder} first, or pass another `--out`"
            case errno.ENOSPC | errno.EDQUOT:
                remedy = f"free some space in {folder}, or pass an `--out` on another disk"
            case errno.ENAMETOOLONG:
                remedy = "pass an `--out` with a shorter name"
            case _:
                remedy = "pass an `--out` in a folder that you can write to"
        raise StorageError(printable(error.problem), remedy=remedy) from cause


def _shown(path: Path) -> str:
    return printable(os.fspath(path))
