"""One sentence of why it died, how sure that is, and the evidence. A pure function of what was gathered.

Causes are tried from what proves itself to what merely fits; the first that holds is reported. 137 says that
somebody sent SIGKILL and not who: without a record of the kernel, a counter or a reading it stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from lowtide.guard.why.allocations import known_names
from lowtide.guard.why.causes import CAUSES, remedies_for
from lowtide.guard.why.evidence import (
    INTERRUPT,
    KILL,
    TERMINATE,
    Evidence,
    Exit,
    TextLog,
    signal_name,
)
from lowtide.guard.why.rules import RULES, Cause, Finding, Sureness
from lowtide.journal import Session
from lowtide.units import format_bytes, format_seconds

Speaks = Literal["for", "against", "neither"]

_LONGEST = 300
_MEMORY: tuple[Cause, ...] = ("out of memory: its cgroup", "out of memory: the machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLine:
    """One thing that is known, or that is missing."""

    source: str
    text: str
    speaks: Speaks = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why it died, what speaks for that and against it, and what to change."""

    about: str
    cause: Cause
    sureness: Sureness
    sentence: str
    evidence: tuple[EvidenceLine, ...]
    remedies: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Verdict {self.cause}: {self.sentence}>"


def judge(evidence: Evidence) -> Verdict:
    """The first cause that the evidence supports, or `unknown` with what is missing."""
    finding = next(found for rule in RULES if (found := rule(evidence)))
    sureness = "" if finding.cause == "unknown" else f" ({finding.sureness})"
    return Verdict(
        about=evidence.about,
        cause=finding.cause,
        sureness=finding.sureness,
        sentence=f"{CAUSES[finding.cause].headline}{sureness}: {finding.why}.",
        evidence=tuple(evidence_lines(evidence, finding)),
        remedies=tuple(remedies_for(evidence, finding)),
    )


def evidence_lines(evidence: Evidence, finding: Finding) -> Iterator[EvidenceLine]:
    """How it ended, what it said, its last memory, what the kernel wrote, and what is missing."""
    if evidence.ending is not None:
        yield _exit_line(evidence.ending, finding)
    for log in evidence.logs:
        yield from _log_lines(log, finding)
    if evidence.session is not None:
        yield from _session_lines(evidence, evidence.session, finding)
    yield from _kernel_lines(evidence, finding)
    for unread in evidence.kernel.unread if CAUSES[finding.cause].kernel_matters else ():
        text = f"not read: {unread.reason}"
        yield EvidenceLine(source=unread.source, text=text)
    if finding.tensor is not None and finding.tensor.exact:
        names = ", ".join(known_names(evidence.dimensions))
        yield EvidenceLine(source="settings", text=names, speaks="for")


def _exit_line(seen: Exit, finding: Finding) -> EvidenceLine:
    if seen.signal is not None and seen.seen:
        text = f"it was ended by {signal_name(seen.signal)} (signal {seen.signal})"
    elif seen.signal is not None:
        text = f"{seen.code}: in a shell 128 + {seen.signal}, {signal_name(seen.signal)}"
        if seen.signal == KILL:
            text += "; it does not say who sent it"
    else:
        text = f"{seen.code}"
    row = CAUSES[finding.cause]
    fits = seen.signal not in (INTERRUPT, KILL, TERMINATE) or seen.signal in row.signals
    proves = seen.signal is None or seen.seen
    speaks: Speaks = "for" if fits and proves and finding.cause != "unknown" else "neither"
    return EvidenceLine(source=f"exit code ({seen.source})", text=text, speaks=speaks)


def _log_lines(log: TextLog, finding: Finding) -> Iterator[EvidenceLine]:
    if log.problem:
        yield EvidenceLine(source=log.path, text=f"not read: {log.problem}")
        return
    shown = [text for text in log.texts if text is not finding.text][-2:]
    if finding.text is not None and finding.text in log.texts:
        shown = [*shown[-1:], finding.text]
    for text in shown:
        source = f"{log.path}, line {text.line_number}"
        is_it = text is finding.text
        speaks: Speaks = "for" if is_it else "neither"
        words = _shortened(text.line)
        if text.went_on:
            words += " (the program went on after this)"
            speaks = "against" if is_it else "neither"
        yield EvidenceLine(source=source, text=words, speaks=speaks)
    if not shown and log.last_line:
        text_of_last = (
            f"no message that explains a death; it ends with: {_shortened(log.last_line)}"
        )
        yield EvidenceLine(source=log.path, text=text_of_last)


def _session_lines(
    evidence: Evidence, session: Session, finding: Finding
) -> Iterator[EvidenceLine]:
    end = session.end
    if end is not None and end.oom_kills is not None:
        ours = finding.cause == "out of memory: its cgroup"
        speaks: Speaks = "for" if bool(end.oom_kills) == ours else "against"
        if finding.cause not in (*_MEMORY, "killed from outside"):
            speaks = "neither"
        text = f"processes of its own cgroup that were killed for memory: {end.oom_kills}"
        if end.oom_kills or CAUSES[finding.cause].kernel_matters:
            yield EvidenceLine(source="cgroup counter", text=text, speaks=speaks)
    if end is not None and end.problem:
        yield EvidenceLine(source="last record", text=_shortened(end.problem), speaks="for")
    for alert in session.alerts[-2:]:
        speaks = "for" if finding.cause == "limit of watch" else "neither"
        text = f"{alert.stage}: {_shortened(alert.reason)}{_time_of(alert.at)}"
        yield EvidenceLine(source="alert of watch", text=text, speaks=speaks)
    if session.last is not None:
        yield _reading_line(evidence, session, finding)
    if end is None and evidence.living is None and not evidence.lock_held:
        torn = ", in the middle of a line" if session.torn else ""
        text = f"no end was written; the last record{_time_of(session.last_at)}{torn}"
        speaks = (
            "for" if finding.cause in ("killed from outside", "crashed", *_MEMORY) else "neither"
        )
        yield EvidenceLine(source="timeline", text=text, speaks=speaks)
    if session.damage:
        yield EvidenceLine(source="timeline", text=_shortened(session.damage))


def _reading_line(evidence: Evidence, session: Session, finding: Finding) -> EvidenceLine:
    last = session.last
    assert last is not None, "the caller has checked that it was read"
    allowed = ""
    if last.cgroup_limit_bytes:
        allowed = (
            f" of the {format_bytes(last.cgroup_limit_bytes)} that the kernel allows its cgroup"
        )
    elif session.limit_bytes is not None:
        allowed = f" of a limit of {format_bytes(session.limit_bytes)}"
    elif session.budget_bytes is not None:
        allowed = f" of a budget of {format_bytes(session.budget_bytes)}"
    parts = [f"{format_bytes(last.private_bytes)} private{allowed}"]
    if last.available_bytes is not None:
        parts.append(f"{format_bytes(last.available_bytes)} available on the machine")
    if last.swapped_bytes:
        parts.append(f"{format_bytes(last.swapped_bytes)} swapped out")
    if last.stalled_percent:
        parts.append(f"{last.stalled_percent:.0f} % of the time stalled for memory")
    fullest = max(last.gpus, key=lambda gpu: gpu.used_bytes, default=None)
    if fullest is not None and fullest.total_bytes:
        used, total = format_bytes(fullest.used_bytes), format_bytes(fullest.total_bytes)
        parts.append(f"{used} of {total} used on the GPU")
    speaks: Speaks = "neither"
    if finding.cause in _MEMORY and evidence.short_of is not None:
        speaks = "for"
    elif finding.cause == "killed from outside":
        speaks = "for" if evidence.short_of is None else "against"
    end_at = session.end.at if session.end else None
    before = ""
    if end_at is not None and last.at:
        before = f", {format_seconds(max(0.0, end_at - last.at))} before the end"
    return EvidenceLine(source=f"last memory{before}", text=", ".join(parts), speaks=speaks)


def _kernel_lines(evidence: Evidence, finding: Finding) -> Iterator[EvidenceLine]:
    matches = evidence.kernel_matches("out of memory", "memory daemon", "crash", "gpu fault")
    records = [match.record for match in matches]
    if finding.record is not None and finding.record not in records:
        records.insert(0, finding.record)
    for record in records[:3]:
        speaks: Speaks = "for" if record is finding.record else "neither"
        text = f"{_shortened(record.line)}{_time_of(record.at)}"
        yield EvidenceLine(source=f"kernel log ({record.source})", text=text, speaks=speaks)
    if not CAUSES[finding.cause].kernel_matters:
        return
    if not records and evidence.kernel.sources:
        yield _silence_line(evidence, finding)
    if evidence.machine.own_process_ids and evidence.kernel.sources:
        text = "this is a container: the kernel's log knows its processes by other numbers"
        yield EvidenceLine(source="kernel log", text=text)


def _silence_line(evidence: Evidence, finding: Finding) -> EvidenceLine:
    source = f"kernel log ({', '.join(evidence.kernel.sources)})"
    others = evidence.recent_kills()
    if evidence.kernel_is_silent:
        speaks: Speaks = "neither"
        if finding.cause in _MEMORY and evidence.pids:  # a log alone may be of another machine
            speaks = "against"
        elif finding.cause == "killed from outside":
            speaks = "for"
        return EvidenceLine(
            source=source, text="read, and it has no such kill for memory", speaks=speaks
        )
    if others:
        last = others[-1]
        text = (
            f"{len(others)} kills for memory in the last day, none of them certainly this one; the newest: "
            f"{last.name} (process {last.pid}){_time_of(last.at)}"
        )
        return EvidenceLine(source=source, text=text)
    text = "read, but it may not reach back to the end of this process"
    return EvidenceLine(source=source, text=text)


def _time_of(at: float | None) -> str:
    if at is None:
        return ""
    try:
        return f" ({datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S})"
    except (ValueError, OverflowError, OSError):
        return ""


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
