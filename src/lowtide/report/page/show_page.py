"""What `lowtide report` prints: where the page is, or with `--json` what it says."""

from __future__ import annotations

import os

from lowtide.report.page.write_page import WrittenPage
from lowtide.report.results import print_json, say


def show_page(page: WrittenPage, *, as_json: bool) -> None:
    """The path to stdout."""
    if not as_json:
        say(os.fsdecode(page.path))
        return
    facts, counts = page.facts, page.facts.counts
    print_json(
        {
            "path": page.path,
            "page_bytes": page.page_bytes,
            "kind": facts.kind,
            "outcome": facts.end.outcome if facts.end else None,
            "verdict": f"{page.verdict.word}: {page.verdict.sentence}",
            "problem": page.verdict.problem or None,
            "remedy": page.verdict.remedy or None,
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
