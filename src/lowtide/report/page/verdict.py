"""How a run ended, in a word and a sentence, from its journal, and from what `why` found of a death."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lowtide.report.page.facts import End, RunFacts
from lowtide.report.page.fields import clock_text
from lowtide.units import format_bytes, format_count, format_seconds

State: TypeAlias = Literal["good", "paused", "bad", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`word` and `sentence` are ours; `problem` and `remedy` are what the run itself said."""

    state: State
    word: str
    sentence: str
    problem: str = ""
    remedy: str = ""


def needs_explanation(facts: RunFacts) -> bool:
    """Whether the journal does not tell how the run ended, or only by which signal."""
    end = facts.end
    return end is None or (end.outcome == "ended" and end.signal is not None)


def judge_run(facts: RunFacts, death: str = "") -> Verdict:
    """The verdict on the last session; `death` is why's sentence, for a run that needs an explanation."""
    end = facts.end
    if end is None:
        return _unended(facts, death)
    match end.outcome:
        case "done":
            return Verdict(state="good", word="Finished", sentence=f"{_came_to(facts)}.")
        case "stopped":
            return _sealed("Stopped cleanly", "paused", facts, end)
        case "interrupted":
            return _sealed("Interrupted", "paused", facts, end)
        case "ended":
            return _judge_watched(facts, end, death)
        case "failed":
            return _failed(facts, end)
    return Verdict(
        state="open", word="Ended", sentence=f"The record ends at {clock_text(facts.last_at)}."
    )


def _unended(facts: RunFacts, death: str) -> Verdict:
    counts = facts.counts
    if not facts.dated and counts.step is not None and counts.step == counts.steps:
        sentence = f"All {counts.steps:,} steps were taken. Logs of this age tell no end."
        return Verdict(state="good", word="All steps taken", sentence=sentence)
    when = f"at {clock_text(facts.last_at)} " if facts.dated else ""
    return Verdict(
        state="open",
        word="No end on record",
        sentence=f"{_came_to(facts)}. The record ends {when}without an end. "
        f"{death or 'It still runs, or it was killed; `lowtide why RUN` says more.'}",
    )


def _sealed(word: str, state: State, facts: RunFacts, end: End) -> Verdict:
    sentence = (
        f"{_came_to(facts)}. What was done is safe: the same command resumes where it stopped."
    )
    return Verdict(
        state=state, word=word, sentence=sentence, problem=end.problem, remedy=end.remedy
    )


def _failed(facts: RunFacts, end: End) -> Verdict:
    code = "" if end.exit_code is None else f" with exit code {end.exit_code}"
    return Verdict(
        state="bad",
        word="Failed",
        sentence=f"{_came_to(facts)}, then it failed{code}.",
        problem=end.problem,
        remedy=end.remedy,
    )


def _judge_watched(facts: RunFacts, end: End, death: str) -> Verdict:
    ran = f"The command ran {format_seconds(facts.worked_seconds)}"
    asked = any(alert.stage in ("ask", "end") for alert in facts.alerts)
    guarded = " The guard had asked it to stop." if asked else ""
    killed = _kills(end)
    if end.signal is not None:
        sentence = f"{ran} and was ended by {_signal_name(end.signal)}.{guarded}{killed}"
        word = "Stopped by the guard" if asked and not end.oom_kills else "Ended by a signal"
        return Verdict(
            state="bad", word=word, sentence=f"{sentence} {death or '`lowtide why` says more.'}"
        )
    if end.exit_code == 0:
        return Verdict(
            state="good",
            word="Finished",
            sentence=f"{ran} and ended with exit code 0.{guarded}{killed}",
        )
    code = "an unknown exit code" if end.exit_code is None else f"exit code {end.exit_code}"
    return Verdict(
        state="bad", word="Ended", sentence=f"{ran} and ended with {code}.{guarded}{killed}"
    )


def _kills(end: End) -> str:
    if end.oom_kills is None:
        return ""
    if not end.oom_kills:
        return " The kernel killed nothing for memory."
    times = "once" if end.oom_kills == 1 else f"{end.oom_kills} times"
    return f" The kernel killed for memory {times}."


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _came_to(facts: RunFacts) -> str:
    """What was done and how long it took: `1.2B tokens from 5.0 GiB of text in 1h 02m`."""
    counts, parts = facts.counts, []
    if counts.step is not None:
        of = f" of {counts.steps:,}" if counts.steps else ""
        parts.append(f"{counts.step:,}{of} steps")
    if counts.merges is not None:
        parts.append(f"{counts.merges:,} merges")
    if counts.tokens and counts.step is None:
        more = "more than " if counts.more_tokens else ""
        parts.append(f"{more}{format_count(counts.tokens)} tokens")
    if counts.done_bytes:
        parts.append(f"{format_bytes(counts.done_bytes)} of input")
    what = " from ".join(parts) if len(parts) < 3 else ", ".join(parts)
    in_time = format_seconds(facts.worked_seconds)
    sessions = facts.sessions.count
    over = f", over {sessions} sessions" if sessions > 1 else ""
    what = what[:1].upper() + what[1:]
    return f"{what} in {in_time}{over}" if what else f"It ran {in_time}{over}"
