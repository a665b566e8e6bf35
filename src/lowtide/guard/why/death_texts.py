"""What programs print when they die, found in their logs.

    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total capacity of …

Only sentences that libraries print are known, not words that a person may write: "in case of CUDA out of
memory, lower the batch" is advice, not a death. A text counts for less when the program went on after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lowtide.guard.why.allocations import (
    GpuFigures,
    RequestedSize,
    read_gpu_figures,
    read_requested_size,
)

TextKind = Literal[
    "gpu memory",
    "memory",
    "shared memory",
    "disk",
    "file size",
    "oom kill",
    "cancelled",
    "interrupt",
    "signal",
    "error",
]

_LONGEST_LINE = 4000
_WENT_ON_LINES = 3
_FAR_LINES = 200
_RANK = r"^(?:\[?rank ?\d+\]?:? ?|\[\d+\]:? ?|\S+ \| )?\s*"

_PATTERNS: tuple[tuple[TextKind, re.Pattern[str]], ...] = (
    ("oom kill", re.compile(r"Detected \d+ oom[_-]kill event")),
    ("oom kill", re.compile(r"[Ee]xceeded (?:job|step) memory limit|\bOOMKilled\b")),
    ("cancelled", re.compile(r"CANCELLED AT \S+ (?:DUE TO ([A-Z ]+\w)|\*\*\*)")),
    ("gpu memory", re.compile(r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate")),
    ("gpu memory", re.compile(r"MPS backend out of memory \(MPS allocated")),
    ("gpu memory", re.compile(r"(?:Error|Exception): (?:CUDA|HIP|XPU) out of memory")),
    ("gpu memory", re.compile(r"(?:CUDA|HIP) error: out of memory|cuda runtime error \(2\)")),
    ("gpu memory", re.compile(r"\b(?:cuda|hip)ErrorMemoryAllocation\b|CUDA_ERROR_OUT_OF_MEMORY")),
    ("gpu memory", re.compile(r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUFFT)_STATUS_\w*ALLOC\w*FAILED\b")),
    ("gpu memory", re.compile(r"(?:RESOURCE_EXHAUSTED|Resource exhausted): ?.{0,120}?\b(?:mem|alloc)")),
    ("gpu memory", re.compile(r"OOM when allocating tensor with shape")),
    ("shared memory", re.compile(r"DataLoader worker .{0,60}killed by signal: Bus error")),
    ("shared memory", re.compile(r"insufficient shared memory \(shm\)")),
    ("signal", re.compile(r"DataLoader worker \(pid\(?s?\)? (\d+)\) is killed by signal: ([\w ]+)")),
    ("memory", re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory")),
    ("memory", re.compile(r"Unable to allocate [\d.]+ \w+ for an array with shape")),
    ("memory", re.compile(r"\bmemory allocation of \d+ bytes failed|malloc of size \d+ failed")),
    ("memory", re.compile(r"what\(\):\s+std::bad_alloc|instance of 'std::bad_alloc'")),
    ("memory", re.compile(_RANK + r"(?:\w+\.)*\w*MemoryError\b(?::|$)")),
    ("memory", re.compile(r"\[Errno 12\]|: Cannot allocate memory$|\(Cannot allocate memory\)")),
    ("disk", re.compile(r"\[Errno 28\]|No space left on device|\bENOSPC\b|\(os error 28\)")),
    ("disk", re.compile(r"\[Errno 122\]|Disk quota exceeded|not enough space on the disk")),
    ("disk", re.compile(r"PytorchStreamWriter failed writing|\.cc:\d+\] \. (?:unexpected pos|file write)")),
    ("file size", re.compile(r"\[Errno 27\]|File size limit exceeded")),
    ("interrupt", re.compile(_RANK + r"KeyboardInterrupt\b(?::|$)")),
    ("signal", re.compile(r"Fatal Python error: (Segmentation fault|Aborted|Bus error|Illegal instruction)")),
    ("signal", re.compile(r"\(exitcode: (-\d+)\) local_rank: \d+ \(pid: (\d+)\)")),
    ("signal", re.compile(r"Signal (\d+) \(SIG\w+\) received by PID (\d+)")),
    ("signal", re.compile(r"line \d+:\s+(\d+) (Killed|Terminated|Segmentation fault|Bus error|Aborted)\b")),
    (
        "signal",
        re.compile(
            r"^(Killed|Terminated|Segmentation fault|Bus error|Aborted|Illegal instruction)"
            r"(?: \(core dumped\))?(?:: \d+)?$"
        ),
    ),
    ("signal", re.compile(r"^zsh: (killed|terminated|segmentation fault|bus error|abort)\b")),
)  # fmt: skip
_HINT = re.compile(
    r"memory|MEMORY|alloc|ALLOC|OOM|oom|CANCELLED|Memory|Errno|space|SPC|quota|os error|File size|Stream|pos"
    r"|file write|Interrupt|Fatal|exitcode|[Ss]ignal|[Kk]illed|[Tt]erminated|fault|[Bb]us err|[Aa]bort|Illegal"
)
_SIGNALS = {
    "killed": 9,
    "terminated": 15,
    "segmentation fault": 11,
    "bus error": 7,
    "aborted": 6,
    "abort": 6,
    "illegal instruction": 4,
}
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_FRAME = re.compile(r"File \"[^\"]*\", line \d+, in ([\w<>.]+)")
_EXCEPTION = re.compile(
    _RANK + r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Failure))(?::|$)"
)
_OUR_ERROR = re.compile(r"^error: ")
_PROGRESS = re.compile(
    r"\b(?:iter|step|epoch|loss|batch)\b.{0,20}\d|\d(?:it|s)/(?:s|it)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathText:
    """One line that reports a death, and its surroundings in the log."""

    kind: TextKind
    line: str
    line_number: int
    """Counted from one, within the part of the log that was read."""
    last_word: bool
    """Only the end of its own traceback follows."""
    went_on: bool
    """The program made progress afterwards: it outlived this."""
    frames: tuple[str, ...] = ()
    """Functions of the traceback that leads to it, outermost first."""
    requested: RequestedSize | None = None
    gpu: GpuFigures | None = None
    signal: int | None = None
    pid: int | None = None
    reason: str = ""
    """Why a scheduler cancelled it."""


def find_death_texts(text: str) -> list[DeathText]:
    """Every text of a known kind, in order; of plain errors only the last."""
    lines = [line[:_LONGEST_LINE] for line in text.splitlines()]
    words_after, progress_after = _count_following(lines)
    found: list[DeathText] = []
    errors: list[DeathText] = []
    for number, kind, match, frames in _matches(lines):
        line = lines[number]
        signal, pid = _signal_of(match) if kind == "signal" else (None, None)
        words, progress = words_after[number], progress_after[number]
        one = DeathText(
            kind=kind,
            line=line.strip(),
            line_number=number + 1,
            last_word=words <= _WENT_ON_LINES,
            went_on=progress >= _WENT_ON_LINES or words > _FAR_LINES,
            frames=frames,
            requested=read_requested_size(line) if kind in ("gpu memory", "memory") else None,
            gpu=read_gpu_figures(line) if kind == "gpu memory" else None,
            signal=signal,
            pid=pid,
            reason=(match[1] or "").strip().lower() if kind == "cancelled" else "",
        )
        (errors if kind == "error" else found).append(one)
    return sorted([*found, *errors[-1:]], key=lambda one: one.line_number)


def _count_following(lines: list[str]) -> tuple[list[int], list[int]]:
    """For each line how many lines after it hold words, and how many report progress. Counted from the end."""
    words, progress = [0], [0]
    for line in reversed(lines[1:]):
        is_noise = not line.strip() or line.startswith((" ", "\t"))
        words.append(words[-1] + (not is_noise))
        progress.append(progress[-1] + bool(_PROGRESS.search(line)))
    return words[::-1], progress[::-1]


def in_evaluation(frames: Sequence[str]) -> bool:
    """Whether a traceback leads through what people call their evaluation."""
    words = ("eval", "estimate_loss", "valid", "no_grad", "inference")
    return any(word in frame.lower() for frame in frames for word in words)


_Match = tuple[int, TextKind, "re.Match[str]", tuple[str, ...]]


def _matches(lines: list[str]) -> Iterator[_Match]:
    """The line of each text, with the functions of the traceback above it."""
    frames: list[str] = []
    traced = False
    for number, line in enumerate(lines):
        if _TRACEBACK.search(line):
            frames, traced = [], True
        elif frame := _FRAME.search(line):
            frames.append(frame[1])
        elif hit := _first_pattern(line):
            yield number, *hit, tuple(frames)
            traced = False
        elif (traced and (error := _EXCEPTION.match(line))) or (error := _OUR_ERROR.match(line)):
            yield number, "error", error, tuple(frames)
            traced = False


def _first_pattern(line: str) -> tuple[TextKind, re.Match[str]] | None:
    if not _HINT.search(line):  # nearly every line: this spares thirty patterns
        return None
    for kind, pattern in _PATTERNS:
        if match := pattern.search(line):
            return kind, match
    return None


def _signal_of(match: re.Match[str]) -> tuple[int | None, int | None]:
    """The signal and the process id, in whichever groups they stand."""
    signal, pid = None, None
    texts = [text for text in match.groups() if text is not None]
    for text in texts:
        word = text.strip().lower()
        if word in _SIGNALS:
            signal = _SIGNALS[word]
        elif word.startswith("-"):
            signal = int(word[1:])
        elif signal is None and text is texts[0] and len(texts) == 2 and "received by" in match[0]:
            signal = int(word)
        elif word.isdigit():
            pid = int(word)
    return signal, pid
