"""Which records of the kernel's log are about this process? Its number alone does not tell: it is reused."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.guard.why.evidence import Evidence
from lowtide.guard.why.kernel_log import KernelRecord, RecordKind

_BEFORE_SECONDS = 10.0
_AFTER_SECONDS = 120.0
"""The last sample may be long before the end: a machine that thrashes writes nothing."""
_NEAR_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMatch:
    """A record, and how well it fits."""

    record: KernelRecord
    proven: bool
    """Number and time fit; else the one of them that is known, or name and time."""


def kernel_matches(
    evidence: Evidence, *kinds: RecordKind, killed: bool = False
) -> list[KernelMatch]:
    """The records that are about this process, the best first.

    `killed`: it is known to have ended by a signal; only then a record that merely fits the moment counts.
    """
    found = [
        match
        for record in evidence.kernel.records
        if record.kind in kinds and (match := _match(record, evidence, killed=killed))
    ]
    return sorted(found, key=lambda match: not match.proven)


def recent_kills(evidence: Evidence, *, within_seconds: float = 86400.0) -> list[KernelRecord]:
    """Kills for memory that may or may not be this one, the newest last."""
    since = evidence.machine.now - within_seconds
    return [
        record
        for record in evidence.kernel.records
        if record.kind == "out of memory" and record.at is not None and record.at >= since
    ]


def _match(record: KernelRecord, evidence: Evidence, *, killed: bool) -> KernelMatch | None:
    if not evidence.machine.own_process_ids and record.pid is not None and evidence.pids:
        return _by_number(record, evidence)
    if not _is_near(record, evidence):
        return None
    names = evidence.session.names if evidence.session else frozenset()
    if names and record.name:
        return KernelMatch(record=record, proven=False) if record.name[:15] in names else None
    return KernelMatch(record=record, proven=False) if killed else None


def _by_number(record: KernelRecord, evidence: Evidence) -> KernelMatch | None:
    if record.pid not in evidence.pids:
        return None
    known = evidence.started_at if evidence.started_at is not None else evidence.ended_at
    if record.until is not None and known is not None and record.until < known - _BEFORE_SECONDS:
        return None  # the log was saved before this process had begun
    if record.at is None or evidence.ended_at is None:
        return KernelMatch(record=record, proven=False)
    began = evidence.started_at if evidence.started_at is not None else evidence.ended_at - 86400
    if began - _BEFORE_SECONDS <= record.at <= evidence.ended_at + _AFTER_SECONDS:
        return KernelMatch(record=record, proven=evidence.started_at is not None)
    return None  # an earlier or a later process of the same number


def _is_near(record: KernelRecord, evidence: Evidence) -> bool:
    if record.at is None or evidence.ended_at is None:
        return False
    return abs(record.at - evidence.ended_at) <= _NEAR_SECONDS
