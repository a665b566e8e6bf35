"""What only points to a cause: last words, a signal, an exit code, a log that breaks off."""

from __future__ import annotations

from typing import Literal

from lowtide.guard.why.causes import CRASHES, Cause, Finding, Sureness, ending, signal_name
from lowtide.guard.why.death_texts import DeathText, TextKind, in_evaluation
from lowtide.guard.why.evidence import Evidence, Exit
from lowtide.guard.why.match_kernel import kernel_matches
from lowtide.guard.why.recognise_tensors import TensorMatch, recognise
from lowtide.units import format_bytes

_HANGUP, _INTERRUPT, _ABORT, _KILL, _TERMINATE = 1, 2, 6, 9, 15
_LIMITS = {
    24: "its limit of processor time (`ulimit -t`)",
    25: "its limit of file size (`ulimit -f`)",
}
_AFTERMATH = ("Xid 45",)
"""Written when the driver cleans up after any process that was ended."""
_TIGHT_SHARE = 0.05
_FULL_SHARE = 0.90
_TELLING: tuple[TextKind, ...] = ("gpu memory", "memory", "shared memory", "disk", "file size")
_COMMAND_CODES = {
    126: "the command could not be executed: it is not a program, or may not be run",
    127: "the shell did not find the command",
    124: "`timeout` ended it, as 124 is its code for that",
}

Tight = Literal["cgroup", "machine"]


def by_last_words(evidence: Evidence) -> Finding | None:
    """A message of its own that names the cause."""
    texts = [text for text in evidence.texts if text.kind in _TELLING and not text.went_on]
    if not texts:
        return None
    return from_text(evidence, texts[-1], _sure_of_text(evidence, texts[-1]))


def _sure_of_text(evidence: Evidence, text: DeathText) -> Sureness:
    seen = ending(evidence)
    if seen is not None and seen.signal in (_KILL, _TERMINATE):
        return "likely"  # a launcher ends the other ranks so; or it is another death
    if seen is not None and (seen.code or seen.signal):
        return "certain"
    return "certain" if text.last_word and text.frames else "likely"


def from_text(evidence: Evidence, text: DeathText, sureness: Sureness) -> Finding | None:
    """The cause that a text names, with the tensor whose size it tells."""
    causes: dict[TextKind, Cause] = {
        "gpu memory": "out of GPU memory",
        "memory": "MemoryError",
        "shared memory": "crashed",
        "disk": "disk full",
        "file size": "failed",
    }
    if text.kind not in causes:
        return None
    tensor = None
    if text.asked is not None:
        evaluating = in_evaluation(text.frames)
        tensor = recognise(text.asked, evidence.dimensions, evaluating=evaluating)
    why = _why_of_text(text, tensor)
    return Finding(cause=causes[text.kind], sureness=sureness, why=why, text=text, tensor=tensor)


def _why_of_text(text: DeathText, tensor: TensorMatch | None) -> str:
    if text.kind == "gpu memory":
        return _asked_in_words(text, "it asked the GPU for") + tensor_in_words(tensor)
    if text.kind == "memory":
        return _asked_in_words(text, "it asked for") + tensor_in_words(tensor)
    if text.kind == "shared memory":
        return "a DataLoader worker died of SIGBUS, which is what a full /dev/shm looks like"
    if text.kind == "disk":
        return "a write was refused for want of space"
    return "a write was refused: the file would exceed the limit of `ulimit -f`"


def _asked_in_words(text: DeathText, verb: str) -> str:
    if text.asked is None:
        return "its own message says so"
    words = f"{verb} {text.asked.text}"
    gpu = text.gpu
    if gpu is not None and gpu.free_bytes is not None:
        total = "" if gpu.total_bytes is None else f" of {format_bytes(gpu.total_bytes)}"
        words += f" when {format_bytes(gpu.free_bytes)}{total} were free"
    return words


def tensor_in_words(tensor: TensorMatch | None) -> str:
    """`: exactly batch 8 × 1024 positions × 50304 vocabulary × 4 bytes, the logits in eval`."""
    if tensor is None:
        return ""
    if tensor.exact:
        return f": exactly {tensor.product}, {tensor.tensor}"
    return f": that would be {tensor.product}, {tensor.tensor} ({tensor.caution})"


def by_gpu_fault(evidence: Evidence) -> Finding | None:
    """The driver wrote of a fault of the card, and it ended neither well nor by somebody's wish."""
    seen = ending(evidence)
    if seen is None or seen.signal in (_INTERRUPT, _KILL, _TERMINATE):
        return None
    matches = kernel_matches(evidence, "gpu fault", killed=True)
    records = [one.record for one in matches if one.record.detail not in _AFTERMATH]
    if not records:
        return None
    why = f"the driver reported a fault of the GPU, {records[0].detail}"
    return Finding(cause="crashed", sureness="likely", why=why, record=records[0])


def by_signal(evidence: Evidence) -> Finding | None:
    """What a signal says of who sent it."""
    seen = ending(evidence)
    told = [text for text in evidence.texts if text.kind == "interrupt" and not text.went_on]
    if seen is not None and seen.signal is not None:
        number = seen.signal
    elif told:
        number = _INTERRUPT
    else:
        return None
    by = seen if seen is not None and seen.signal is not None else Exit(source="log", signal=number)
    if number == _KILL:
        return _killed(evidence, by)
    if number in CRASHES:
        return _crashed(evidence, by)
    return _asked_to_end(by, confirmed=bool(told))


def _asked_to_end(by: Exit, *, confirmed: bool) -> Finding | None:
    number = by.signal
    sureness: Sureness = "certain" if by.seen or confirmed else "likely"
    code = "" if by.seen or by.code is None else f", as exit code {by.code} says in a shell"
    if number == _INTERRUPT:
        return Finding(
            cause="interrupted", sureness=sureness, why=f"Ctrl-C, or a SIGINT from elsewhere{code}"
        )
    if number == _TERMINATE:
        why = f"somebody sent SIGTERM{code}: `kill`, a scheduler, a service manager, a shutdown"
        return Finding(cause="terminated", sureness=sureness, why=why)
    if number == _HANGUP:
        why = f"SIGHUP{code}: its terminal was closed, or the connection to it broke"
        return Finding(cause="terminated", sureness=sureness, why=why)
    if number in _LIMITS:
        why = f"{signal_name(number)}{code}: it reached {_LIMITS[number]}"
        return Finding(cause="terminated", sureness=sureness, why=why)
    if number is None:
        return None
    why = f"it was ended by {signal_name(number)}{code}"
    return Finding(cause="terminated", sureness=sureness, why=why)


def _crashed(evidence: Evidence, by: Exit) -> Finding:
    number = by.signal or 0
    session = evidence.session
    if number == _ABORT and session is not None and session.kind not in ("", "watch"):
        # Our stages limit their memory, and Rust libraries abort when an allocation is refused.
        told = "SIGABRT" if by.seen else f"exit code {by.code}, which means SIGABRT in a shell"
        why = f"{told}: native code aborts like this when it is refused memory beyond the budget"
        return Finding(cause="MemoryError", sureness="likely", why=why)
    records = [one.record for one in kernel_matches(evidence, "crash", "gpu fault")]
    library = next((record.detail for record in records if record.detail), "")
    where = f", in {library}" if library else ""
    what = {
        11: "it touched memory that is not its own",
        7: "a page could not be had: a full /dev/shm, or a mapped file that was cut short",
        6: "it gave up by itself (abort)",
        4: "it came to an instruction that this processor does not have",
    }.get(number, "a fault in native code")
    code = "" if by.seen or by.code is None else f", as exit code {by.code} says in a shell"
    said = any(text.signal == number for text in evidence.texts)
    return Finding(
        cause="crashed",
        sureness="certain" if by.seen or said or records else "likely",
        why=f"{signal_name(number)}{code}: {what}{where}",
        record=records[0] if records else None,
    )


def tight(evidence: Evidence) -> Tight | None:
    """Whose memory was nearly gone at the last look; nobody's where it was not, or nobody looked."""
    reading = evidence.reading
    if reading is None:
        return None
    limit, private = reading.cgroup_limit_bytes, reading.private_bytes
    if limit and private is not None and private >= _FULL_SHARE * limit:
        return "cgroup"
    total, available = evidence.machine.total_ram_bytes, reading.available_bytes
    if total and available is not None and available < _TIGHT_SHARE * total:
        return "machine"
    return None


def kernel_is_silent(evidence: Evidence) -> bool:
    """A log that reaches back to the end was read, and tells of no kill for memory that could be this one."""
    if not evidence.kernel.reaches(evidence.ended_at):
        return False
    return not kernel_matches(evidence, "out of memory", "memory daemon", killed=True)


def _killed(evidence: Evidence, by: Exit) -> Finding | None:
    """SIGKILL without a record of the kernel's."""
    reading, short = evidence.reading, tight(evidence)
    told = "it ended by SIGKILL" if by.seen else f"exit code {by.code} means SIGKILL in a shell"
    logs = [log for log in evidence.logs if not log.problem]
    breaks_off = bool(logs) and not any(log.texts for log in logs)
    if kernel_is_silent(evidence) and (reading is not None or evidence.pids or breaks_off):
        why = f"{told}, and the kernel's log tells of no kill for memory at that time"
        if short:
            why += "; memory was nearly gone, so a daemon that watches over it may have done it"
        sureness: Sureness = "likely" if by.seen and not short and reading else "possible"
        return Finding(cause="killed from outside", sureness=sureness, why=why)
    if short is not None:
        return _tight_finding(evidence, short, told)
    if reading is not None and reading.available_bytes is not None and by.seen:
        free = format_bytes(reading.available_bytes)
        why = f"{told} while {free} of the machine's memory were available; the kernel's log cannot be asked"
        return Finding(cause="killed from outside", sureness="possible", why=why)
    if breaks_off:
        why = (
            f"{told}, and its log breaks off without an error, as it does when the kernel kills a job to free "
            "memory; a person, a scheduler or a stopped container may have sent it as well"
        )
        return Finding(cause="out of memory: the machine", sureness="possible", why=why)
    return Finding(
        cause="unknown",
        sureness="unknown",
        why=f"{told}, and nothing tells who sent it: the kernel for want of memory, or a person, a "
        f"scheduler, a container's end",
    )


def _tight_finding(evidence: Evidence, short: Tight, told: str) -> Finding:
    reading = evidence.reading
    assert reading is not None, "nobody is short of memory that was not looked at"
    if short == "cgroup":
        held, limit = reading.private_bytes or 0, reading.cgroup_limit_bytes or 0
        why = f"{told} when it held {format_bytes(held)} of the {format_bytes(limit)} its cgroup allows"
        return Finding(cause="out of memory: its cgroup", sureness="possible", why=why)
    free = format_bytes(reading.available_bytes or 0)
    why = f"{told} when only {free} of the machine's memory were left"
    return Finding(cause="out of memory: the machine", sureness="possible", why=why)


def by_exit(evidence: Evidence) -> Finding | None:
    """It ended itself with an error, or its log ends in one."""
    errors = [text for text in evidence.texts if text.kind == "error" and not text.went_on]
    seen = ending(evidence)
    code = seen.code if seen is not None else None
    if code == 75:
        why = "exit code 75, which says: run the same command again"
        return Finding(cause="stopped cleanly", sureness="likely", why=why)
    if code and code in _COMMAND_CODES:
        return Finding(cause="failed", sureness="likely", why=_COMMAND_CODES[code])
    if errors and (code or errors[-1].last_word):
        why = f"its last error was {_shortened(errors[-1].line)}"
        return Finding(
            cause="failed", sureness="certain" if code else "likely", why=why, text=errors[-1]
        )
    if code:
        why = f"it ended itself with exit code {code}, and no message tells why"
        return Finding(cause="failed", sureness="certain", why=why)
    return None


def vanished(evidence: Evidence) -> Finding | None:
    """A journal that breaks off: whoever wrote it had no time to say so. Or one that could not see the end."""
    session = evidence.session
    if session is None or session.kind == "":
        return None
    told = "its records break off"
    if session.end is not None:
        told = "watch saw it end, but had not started it and so was not told its exit code"
    boot_at, last_at = evidence.machine.boot_at, session.last_at
    short = tight(evidence)
    if short is not None and not kernel_is_silent(evidence):
        return _tight_finding(evidence, short, told)
    if session.end is None and boot_at is not None and last_at is not None and boot_at > last_at:
        why = (
            f"{told}, and this machine was started again after that: it went down with the machine"
        )
        return Finding(cause="killed from outside", sureness="possible", why=why)
    crashes = kernel_matches(evidence, "crash")
    if crashes:
        record = crashes[0].record
        where = f" in {record.detail}" if record.detail else ""
        why = f"the kernel wrote of a fault of process {record.pid} ({record.name}){where}"
        return Finding(cause="crashed", sureness="likely", why=why, record=record)
    if session.kind != "watch" and kernel_is_silent(evidence):
        why = (
            f"{told} without an end, and the kernel's log tells of no kill for memory and no crash; had memory "
            "beyond the budget been refused, its exit code would be 134 (pass `--exit-code`)"
        )
        return Finding(cause="killed from outside", sureness="possible", why=why)
    if session.end is None:
        told += " without an end"
        told += ": watch itself was ended before the job" if session.kind == "watch" else ""
    why = f"{told}, and nothing tells why"
    return Finding(cause="unknown", sureness="unknown", why=why)


def _shortened(line: str) -> str:
    return line if len(line) <= 200 else line[:199] + "…"
