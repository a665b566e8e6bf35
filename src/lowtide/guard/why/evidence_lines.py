"""The evidence as people read it: where it comes from, what it says, and whether it speaks for the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from lowtide.guard.why.causes import Cause, Finding, ending, signal_name
from lowtide.guard.why.evidence import Evidence, Exit, Session, TextLog
from lowtide.guard.why.match_kernel import kernel_matches, recent_kills
from lowtide.guard.why.recognise_tensors import known_names
from lowtide.guard.why.signs import kernel_is_silent, tight
from lowtide.units import format_bytes, format_seconds

Speaks = Literal["for", "against", "neither"]

_LONGEST = 300
_MEMORY: tuple[Cause, ...] = ("out of memory: its cgroup", "out of memory: the machine")
_ASK_THE_KERNEL: tuple[Cause, ...] = (
    *_MEMORY,
    "killed from outside",
    "terminated",
    "crashed",
    "unknown",
)
"""Where it matters that the kernel's log says nothing, or was not read."""
_ENDS: dict[int, tuple[Cause, ...]] = {
    2: ("interrupted",),
    9: ("killed from outside", "limit of watch", *_MEMORY),
    15: ("terminated", "limit of watch", "out of memory: the machine"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLine:
    """One thing that is known, or that is missing."""

    source: str
    text: str
    speaks: Speaks


def evidence_lines(evidence: Evidence, finding: Finding) -> Iterator[EvidenceLine]:
    """How it ended, what it said, its last memory, what the kernel wrote, and what is missing."""
    seen = ending(evidence)
    if seen is not None:
        yield _exit_line(seen, finding)
    for log in evidence.logs:
        yield from _log_lines(log, finding)
    if evidence.session is not None:
        yield from _session_lines(evidence, evidence.session, finding)
    yield from _kernel_lines(evidence, finding)
    yield from _missing_lines(evidence, finding)


def _exit_line(seen: Exit, finding: Finding) -> EvidenceLine:
    if seen.signal is not None and seen.seen:
        text = f"it was ended by {signal_name(seen.signal)} (signal {seen.signal})"
    elif seen.signal is not None:
        text = f"{seen.code}: in a shell 128 + {seen.signal}, {signal_name(seen.signal)}"
        if seen.signal == 9:
            text += "; it does not say who sent it"
    else:
        text = f"{seen.code}"
    fits = finding.cause in _ENDS.get(seen.signal or 0, (finding.cause,))
    proves = seen.signal is None or seen.seen
    speaks: Speaks = "for" if fits and proves and finding.cause != "unknown" else "neither"
    return EvidenceLine(source=f"exit code ({seen.source})", text=text, speaks=speaks)


def _log_lines(log: TextLog, finding: Finding) -> Iterator[EvidenceLine]:
    if log.problem:
        yield EvidenceLine(source=log.path, text=f"not read: {log.problem}", speaks="neither")
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
        text_of_last = f"no message that tells; it ends with: {_shortened(log.last_line)}"
        yield EvidenceLine(source=log.path, text=text_of_last, speaks="neither")


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
        if end.oom_kills or finding.cause in _ASK_THE_KERNEL:
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
        yield EvidenceLine(source="timeline", text=_shortened(session.damage), speaks="neither")


def _reading_line(evidence: Evidence, session: Session, finding: Finding) -> EvidenceLine:
    last = session.last
    assert last is not None, "asked for above"
    parts = []
    if last.private_bytes is not None:
        parts.append(f"{format_bytes(last.private_bytes)} private{_against_limit(session)}")
    if last.available_bytes is not None:
        parts.append(f"{format_bytes(last.available_bytes)} available on the machine")
    if last.swapped_bytes:
        parts.append(f"{format_bytes(last.swapped_bytes)} swapped out")
    if last.stalled_percent:
        parts.append(f"{last.stalled_percent:.0f} % of the time stalled for memory")
    if last.gpu_used_bytes is not None and last.gpu_total_bytes:
        used, total = format_bytes(last.gpu_used_bytes), format_bytes(last.gpu_total_bytes)
        parts.append(f"{used} of {total} used on the GPU")
    short = tight(evidence)
    speaks: Speaks = "neither"
    if finding.cause in _MEMORY and short is not None:
        speaks = "for"
    elif finding.cause == "killed from outside":
        speaks = "for" if short is None else "against"
    before = _before_end(session)
    return EvidenceLine(source=f"last memory{before}", text=", ".join(parts), speaks=speaks)


def _against_limit(session: Session) -> str:
    last = session.last
    limit = (last.cgroup_limit_bytes if last else None) or session.limit_bytes
    if limit is not None:
        return f" of a limit of {format_bytes(limit)}"
    if session.budget_bytes is not None:
        return f" of a budget of {format_bytes(session.budget_bytes)}"
    return ""


def _before_end(session: Session) -> str:
    end_at = session.end.at if session.end else None
    if end_at is None or session.last is None or session.last.at is None:
        return ""
    return f", {format_seconds(max(0.0, end_at - session.last.at))} before the end"


def _kernel_lines(evidence: Evidence, finding: Finding) -> Iterator[EvidenceLine]:
    matches = kernel_matches(
        evidence, "out of memory", "memory daemon", "crash", "gpu fault", killed=False
    )
    records = [match.record for match in matches]
    if finding.record is not None and finding.record not in records:
        records.insert(0, finding.record)
    for record in records[:3]:
        speaks: Speaks = "for" if record is finding.record else "neither"
        text = f"{_shortened(record.line)}{_time_of(record.at)}"
        yield EvidenceLine(source=f"kernel log ({record.source})", text=text, speaks=speaks)
    if finding.cause not in _ASK_THE_KERNEL:
        return
    if not records and evidence.kernel.sources:
        yield _silence_line(evidence, finding)
    if evidence.machine.own_process_ids and evidence.kernel.sources:
        text = "this is a container: the kernel's log knows its processes by other numbers"
        yield EvidenceLine(source="kernel log", text=text, speaks="neither")


def _silence_line(evidence: Evidence, finding: Finding) -> EvidenceLine:
    source = f"kernel log ({', '.join(evidence.kernel.sources)})"
    others = recent_kills(evidence)
    if kernel_is_silent(evidence):
        speaks: Speaks = "neither"
        if finding.cause in _MEMORY and evidence.pids:  # a log alone may be of another machine
            speaks = "against"
        elif finding.cause == "killed from outside":
            speaks = "for"
        return EvidenceLine(
            source=source, text="read, and it tells of no such kill for memory", speaks=speaks
        )
    if others:
        last = others[-1]
        text = (
            f"{len(others)} kills for memory in the last day, none that is surely this one; the newest: "
            f"{last.name} (process {last.pid}){_time_of(last.at)}"
        )
        return EvidenceLine(source=source, text=text, speaks="neither")
    text = "read, but it cannot be said to reach back to the end of this process"
    return EvidenceLine(source=source, text=text, speaks="neither")


def _missing_lines(evidence: Evidence, finding: Finding) -> Iterator[EvidenceLine]:
    for log in evidence.kernel.unread if finding.cause in _ASK_THE_KERNEL else ():
        yield EvidenceLine(source=log.source, text=f"not read: {log.reason}", speaks="neither")
    if finding.tensor is not None and finding.tensor.exact:
        names = ", ".join(known_names(evidence.dimensions))
        yield EvidenceLine(source="settings", text=names, speaks="for")


def _time_of(at: float | None) -> str:
    if at is None:
        return ""
    try:
        return f" ({datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S})"
    except (ValueError, OverflowError, OSError):
        return ""


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
