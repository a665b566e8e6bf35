"""How a run ended: the outcome its journal records, what it had done by then, and the verdict of `why`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from lowtide.guard.why.evidence import signal_name
from lowtide.show.page.facts import RunFacts
from lowtide.show.page.work_clock import clock_text
from lowtide.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from lowtide.guard.why.verdict import Verdict

State: TypeAlias = Literal["good", "paused", "bad", "open"]
_OUTCOMES: dict[str, tuple[State, str]] = {
    "done": ("good", "Finished"),
    "stopped": ("paused", "Stopped cleanly"),
    "interrupted": ("paused", "Interrupted"),
    "failed": ("bad", "Failed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The headline of the page. `problem` and `remedies` may hold text that the run itself wrote."""

    state: State
    word: str
    sentence: str
    problem: str = ""
    remedies: tuple[str, ...] = ()


def needs_explanation(facts: RunFacts) -> bool:
    """Whether the page shows a verdict of `why`: for every run that is not known to be done."""
    if _took_all_steps(facts):
        return False
    return facts.end is None or facts.end.outcome != "done"


def judge_run(facts: RunFacts, verdict: Verdict | None = None) -> Outcome:
    """The outcome of the last session; `verdict` is that of `why`, if it was asked."""
    end = facts.end
    state, word = _state_and_word(facts)
    parts = [_work_done(facts)]
    if end is None and facts.dated:
        parts.append(f"The record ends at {clock_text(facts.last_at)} without an end.")
    elif end is None and not _took_all_steps(facts):
        parts.append("The record ends without an end.")
    if state == "paused":
        parts.append("What was done is safe: the same command resumes where it stopped.")
    if verdict is not None:
        parts.append(verdict.sentence)
    elif end is None and not _took_all_steps(facts):
        parts.append("It still runs, or it was killed; `lowtide why RUN` says more.")
    sentence = " ".join(parts)
    problem = (end.problem or "") if end else ""
    own_remedy = (end.remedy,) if end and end.remedy else ()
    return Outcome(
        state=state,
        word=word,
        sentence=sentence,
        problem="" if problem.rstrip(".") in sentence else problem,
        remedies=verdict.remedies if verdict else own_remedy,
    )


def _state_and_word(facts: RunFacts) -> tuple[State, str]:
    end = facts.end
    if end is None:
        if _took_all_steps(facts):
            return "good", "All steps taken"
        return "open", "No end on record"
    if end.outcome == "failed" and end.exit_code:
        return "bad", f"Failed with exit code {end.exit_code}"
    if end.outcome != "ended":
        return _OUTCOMES.get(end.outcome, ("open", "Ended"))
    # Only `watch` writes "ended": it sees how a command of any kind came out.
    if end.signal is not None:
        return "bad", f"Ended by signal {end.signal} ({signal_name(end.signal)})"
    if end.exit_code is None:
        return "bad", "Ended with an unknown exit code"
    return ("bad" if end.exit_code else "good"), f"Ended with exit code {end.exit_code}"


def _took_all_steps(facts: RunFacts) -> bool:
    """Logs from before records had times have no end either, but they count their steps."""
    counts = facts.counts
    return (
        facts.end is None
        and not facts.dated
        and counts.step is not None
        and counts.step == counts.steps
    )


def _work_done(facts: RunFacts) -> str:
    """What was done and how long it took: `1.2B tokens from 5.0 GiB of input in 1h 02m.`"""
    counts, parts = facts.counts, []
    if counts.step is not None:
        total = f" of {counts.steps:,}" if counts.steps else ""
        parts.append(f"{counts.step:,}{total} steps")
    if counts.merges is not None:
        parts.append(f"{counts.merges:,} merges")
    if counts.tokens and counts.step is None:
        more = "more than " if counts.more_tokens else ""
        parts.append(f"{more}{format_count(counts.tokens)} tokens")
    if counts.done_bytes:
        parts.append(f"{format_bytes(counts.done_bytes)} of input")
    done = " from ".join(parts) if len(parts) < 3 else ", ".join(parts)
    duration = format_seconds(facts.worked_seconds)
    sessions = facts.sessions.count
    over = f", over {sessions} sessions" if sessions > 1 else ""
    if not done:
        return f"It ran {duration}{over}."
    return f"{done[:1].upper()}{done[1:]} in {duration}{over}."
