"""The causes there are, and how a finding becomes a sentence."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from lowtide.guard.why.death_texts import DeathText
from lowtide.guard.why.evidence import Evidence, Exit
from lowtide.guard.why.kernel_log import KernelRecord
from lowtide.guard.why.recognise_tensors import TensorMatch

Cause = Literal[
    "finished",
    "running",
    "stopped cleanly",
    "interrupted",
    "out of memory: its cgroup",
    "out of memory: the machine",
    "out of GPU memory",
    "MemoryError",
    "killed from outside",
    "terminated",
    "crashed",
    "disk full",
    "limit of watch",
    "failed",
    "unknown",
]
Sureness = Literal["certain", "likely", "possible", "unknown"]

CRASHES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV", 31: "SIGSYS"}
_IN_WORDS: dict[Cause, str] = {
    "finished": "It finished",
    "running": "It is still running",
    "stopped cleanly": "It stopped cleanly",
    "interrupted": "It was interrupted",
    "out of memory: its cgroup": "Out of memory in its own cgroup",
    "out of memory: the machine": "The machine was out of memory",
    "out of GPU memory": "Out of GPU memory",
    "MemoryError": "An allocation was refused",
    "killed from outside": "It was killed from outside",
    "terminated": "It was asked to end",
    "crashed": "It crashed",
    "disk full": "The disk was full",
    "limit of watch": "It was ended by lowtide watch",
    "failed": "It failed",
    "unknown": "Unknown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause, how sure it is, and what it rests on."""

    cause: Cause
    sureness: Sureness
    why: str
    """The rest of the sentence, without a full stop."""
    text: DeathText | None = None
    tensor: TensorMatch | None = None
    record: KernelRecord | None = None


def sentence_of(finding: Finding) -> str:
    """`Out of GPU memory (certain): it asked for …`"""
    words = _IN_WORDS[finding.cause]
    if finding.cause == "unknown":
        return f"{words}: {finding.why}."
    return f"{words} ({finding.sureness}): {finding.why}."


def ending(evidence: Evidence) -> Exit | None:
    """How it ended: as seen by `watch`, as told on the command line, or as the last words of a log say."""
    end = evidence.session.end if evidence.session else None
    if end is not None and (end.exit_code is not None or end.signal is not None):
        watched = evidence.session is not None and evidence.session.kind == "watch"
        return exit_of(end.exit_code, end.signal, source="timeline" if watched else "last record")
    if evidence.exit is not None:
        return evidence.exit
    told = [text for text in evidence.texts if text.signal is not None and not text.went_on]
    if told:
        return Exit(source="log", signal=told[-1].signal)
    return None


def exit_of(code: int | None, number: int | None, *, source: str) -> Exit:
    """A code above 128 is a shell's word for a signal; a negative one is Python's."""
    if number is None and code is not None and -65 < code < 0:
        return Exit(source=source, signal=-code)
    if number is None and code is not None and 128 < code <= 192:
        return Exit(source=source, code=code, signal=code - 128, seen=False)
    return Exit(source=source, code=code, signal=number)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
