"""One sentence of why it died, and how sure that is. A pure function of the evidence.

Causes are tried from what proves itself to what merely fits; the first that holds is told. 137 says that
somebody sent SIGKILL and not who: without a record of the kernel, a counter or a reading it stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowtide.guard.why.causes import Cause, Finding, Sureness, sentence_of
from lowtide.guard.why.evidence import Evidence
from lowtide.guard.why.evidence_lines import EvidenceLine, evidence_lines
from lowtide.guard.why.proofs import (
    by_counters,
    by_kernel,
    by_memory_daemon,
    by_own_record,
    by_scheduler,
    by_watch,
    finished,
    running,
)
from lowtide.guard.why.remedies import remedies_for
from lowtide.guard.why.signs import by_exit, by_gpu_fault, by_last_words, by_signal, vanished


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why it died, what speaks for that and against it, and what to change."""

    about: str
    cause: Cause
    sureness: Sureness
    sentence: str
    evidence: tuple[EvidenceLine, ...]
    remedies: tuple[str, ...]


_RULES: tuple[Callable[[Evidence], Finding | None], ...] = (
    running,
    by_watch,
    finished,
    by_kernel,
    by_counters,
    by_memory_daemon,
    by_scheduler,
    by_own_record,
    by_last_words,
    by_gpu_fault,
    by_signal,
    by_exit,
    vanished,
)


def judge(evidence: Evidence) -> Verdict:
    """The first cause that the evidence bears, or `unknown` with what is missing."""
    finding = next((found for rule in _RULES if (found := rule(evidence))), None)
    if finding is None:
        finding = Finding(cause="unknown", sureness="unknown", why=_what_is_missing(evidence))
    return Verdict(
        about=evidence.about,
        cause=finding.cause,
        sureness=finding.sureness,
        sentence=sentence_of(finding),
        evidence=tuple(evidence_lines(evidence, finding)),
        remedies=tuple(remedies_for(evidence, finding)),
    )


def _what_is_missing(evidence: Evidence) -> str:
    if evidence.session is None and evidence.exit is None and not evidence.texts:
        gone = f"process {evidence.pid} is not there any more, and " if evidence.pid else ""
        return f"{gone}there is no timeline, no exit code and no message that tells"
    return "nothing that was found tells why it ended"
