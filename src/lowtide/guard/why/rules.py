"""The rules by which a death is judged, in order: from what proves itself to what merely fits.

Each rule looks at the evidence and returns a `Finding` or None; `verdict.judge` takes the first finding. What a
message, a signal or an exit code means stands in tables, one row each: cause, sentence and its own remedies. To
explain a new death, add a row; to draw on a new kind of evidence, add a rule to `RULES` at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from lowtide.guard.why.allocations import TensorMatch, recognise
from lowtide.guard.why.death_texts import DeathText, TextKind, find_death_texts, in_evaluation
from lowtide.guard.why.evidence import (
    INTERRUPT,
    KILL,
    TERMINATE,
    Evidence,
    Exit,
    LivingProcess,
    signal_name,
)
from lowtide.guard.why.kernel_log import KernelRecord
from lowtide.units import format_bytes

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
    remedies: tuple[str, ...] = ()
    """Instead of those that fit every death of this cause."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one message, signal or exit code means."""

    cause: Cause
    sentence: str
    remedies: tuple[str, ...] = ()


_LONG_BEFORE_SECONDS = 600.0
_ABORT = 6
CRASH_REMEDIES = (
    "run it with `python -X faulthandler`: it prints where in Python it was",
    "update or replace the native library that is named; if crashes move around, test the memory",
)
_GPU_FAULT_REMEDIES = (
    "look the number up in NVIDIA's list of Xid errors: 13, 31 and 43 are mostly the program's fault",
    "48, 63, 74, 79 and 94 are faults of the card, its cable or its driver: see `nvidia-smi -q`",
)
_CHECK_COMMAND = (
    "check the command's name, its path and its permissions: `command -v NAME` says what would run",
)
_MESSAGES: dict[TextKind, Row] = {
    "gpu memory": Row("out of GPU memory", "it asked the GPU for"),
    "memory": Row("MemoryError", "it asked for"),
    "shared memory": Row(
        "crashed",
        "a DataLoader worker died of SIGBUS, which is what a full /dev/shm looks like",
        (
            "give the container more shared memory (`docker run --shm-size=8g`), or use fewer workers",
        ),
    ),
    "disk": Row("disk full", "a write was refused for lack of space"),
    "file size": Row(
        "failed",
        "a write was refused: the file would exceed the limit of `ulimit -f`",
        ("raise the limit: `ulimit -f unlimited`",),
    ),
}
_OUR_PROBLEMS: dict[str, Cause] = {
    "(EDQUOT)": "disk full",
    "does not fit into the GPU's memory": "out of GPU memory",
    "an allocation beyond the budget was refused": "MemoryError",
    "MemoryError": "MemoryError",
}
"""Words of our own error messages, and the causes they name."""
_SIGNALS: dict[int, Row] = {
    1: Row("terminated", "{name}{code}: its terminal was closed, or the connection to it broke"),
    INTERRUPT: Row("interrupted", "Ctrl-C, or a SIGINT from elsewhere{code}"),
    4: Row("crashed", "{name}{code}: it used an instruction that this processor does not have"),
    _ABORT: Row("crashed", "{name}{code}: it gave up by itself (abort)"),
    7: Row(
        "crashed",
        "{name}{code}: a page could not be loaded: a full /dev/shm, or a mapped file that was cut short",
        (
            "see whether /dev/shm or the disk of a mapped file is full: `df -h /dev/shm`",
            *CRASH_REMEDIES,
        ),
    ),
    8: Row("crashed", "{name}{code}: a fault in native code"),
    11: Row("crashed", "{name}{code}: it touched memory that is not its own"),
    TERMINATE: Row(
        "terminated",
        "somebody sent SIGTERM{code}: `kill`, a scheduler, a service manager, a shutdown",
    ),
    24: Row("terminated", "{name}{code}: it reached its limit of processor time (`ulimit -t`)"),
    25: Row("terminated", "{name}{code}: it reached its limit of file size (`ulimit -f`)"),
    31: Row("crashed", "{name}{code}: a fault in native code"),
}
_ANY_SIGNAL = Row("terminated", "it was ended by {name}{code}")
_EXIT_CODES: dict[int, Row] = {
    75: Row("stopped cleanly", "exit code 75, which means: run the same command again"),
    124: Row("failed", "124 is the exit code of `timeout` for a command that it ended"),
    126: Row(
        "failed",
        "the command could not be executed: it is not a program, or may not be run",
        _CHECK_COMMAND,
    ),
    127: Row("failed", "the shell did not find the command", _CHECK_COMMAND),
}


# Rules on what was written down by the run itself, `watch`, the kernel, a counter or a scheduler.


def is_running(evidence: Evidence) -> Finding | None:
    """It exists, or holds the lock of its folder."""
    living = evidence.living
    if living is not None and living.state != "zombie":
        return Finding(cause="running", sureness="certain", why=_how_it_lives(living))
    if evidence.lock_held:
        why = "the lock of its folder is held, by a process on this machine or another"
        return Finding(cause="running", sureness="certain", why=why)
    return None


def _how_it_lives(living: LivingProcess) -> str:
    why = f"process {living.pid} ({living.name}) is alive"
    if living.use.process_count:
        count = living.use.process_count
        where = "" if count == 1 else f" in {count} processes"
        why += f", with {format_bytes(living.use.private_bytes)} of private memory{where}"
    if living.state in ("stopped", "tracing-stop"):
        return f"{why}; it is paused, by Ctrl-Z or SIGSTOP"
    if living.state == "disk-sleep":
        return f"{why}; at this moment it waits for a disk, or for memory to be read back from swap"
    return why


def watch_acted(evidence: Evidence) -> Finding | None:
    """`watch` asked it to stop, or ended it, and it ended."""
    session = evidence.session
    acts = [one for one in session.alerts if one.stage in ("ask", "end")] if session else []
    if session is None or session.end is None or not acts:
        return None
    end, last = session.end, acts[-1]
    forced = end.forced or last.stage == "end"
    if end.signal == KILL and (end.oom_kills or not forced):
        return None  # the kernel was faster, or somebody else
    done = "sent SIGKILL" if forced and end.signal == KILL else "asked it to stop"
    why = f"watch {done}, because {last.reason or 'a limit was reached'}"
    seen = evidence.ending
    sureness: Sureness = "likely"
    if seen is not None and seen.signal in (KILL, TERMINATE):
        sureness = "certain"
    elif last.at is not None and (evidence.ended_at or 0) - last.at > _LONG_BEFORE_SECONDS:
        sureness = "possible"
    return Finding(cause="limit of watch", sureness=sureness, why=why)


def has_finished(evidence: Evidence) -> Finding | None:
    """It ended by itself and without an error."""
    end, seen = evidence.session.end if evidence.session else None, evidence.ending
    if end is not None and end.outcome == "done":
        return Finding(cause="finished", sureness="certain", why="its last record says done")
    if seen is None or seen.code != 0 or seen.signal is not None:
        return None
    why = "it ended by itself with exit code 0"
    if end is not None and end.oom_kills:
        count = f"{end.oom_kills} of its processes" if end.oom_kills > 1 else "one of its processes"
        why += f", although the kernel killed {count} for memory before that: check its output"
    return Finding(cause="finished", sureness="certain", why=why)


def kernel_killed(evidence: Evidence) -> Finding | None:
    """The kernel logged that it killed it for memory."""
    killed = _signal_of(evidence) == KILL
    matches = evidence.kernel_matches("out of memory", killed=killed)
    if not matches:
        return None
    best = next((one for one in matches if one.record.pid == evidence.pid), matches[0])
    record = best.record
    size = record.anonymous_bytes
    held = f", when it held {format_bytes(size)}" if size is not None else ""
    why = f"the kernel killed {record.name or 'it'} (process {record.pid}){held}"
    cause: Cause = "out of memory: the machine"
    if record.scope == "cgroup":
        cause = "out of memory: its cgroup"
        why += f"; the cgroup's memory limit was reached{_limit_in_words(evidence)}"
    else:
        why += "; the whole machine had no memory left"
    itself = record.pid in (evidence.pid, evidence.session.pid if evidence.session else None)
    sureness: Sureness = "certain" if best.proven and (itself or killed) else "likely"
    return Finding(cause=cause, sureness=sureness, why=why, record=record)


def _limit_in_words(evidence: Evidence) -> str:
    session, reading = evidence.session, evidence.reading
    limit = (reading.cgroup_limit_bytes if reading else None) or (
        session.limit_bytes if session and session.how.startswith("cgroup") else None
    )
    return "" if limit is None else f", {format_bytes(limit)}"


def cgroup_counted(evidence: Evidence) -> Finding | None:
    """The counter of its own cgroup says that processes in it were killed for memory."""
    end = evidence.session.end if evidence.session else None
    if end is None or not end.oom_kills:
        return None
    times = "once" if end.oom_kills == 1 else f"{end.oom_kills} times"
    why = f"its cgroup's limit{_limit_in_words(evidence)} was reached, and the kernel killed in it {times}"
    if _signal_of(evidence) == KILL:
        return Finding(cause="out of memory: its cgroup", sureness="certain", why=why)
    why += "; the process that was killed was one of its children, or it ended after that"
    return Finding(cause="out of memory: its cgroup", sureness="likely", why=why)


def memory_daemon_killed(evidence: Evidence) -> Finding | None:
    """systemd-oomd or earlyoom logged that it killed it."""
    killed = _signal_of(evidence) in (KILL, TERMINATE)
    matches = evidence.kernel_matches("memory daemon", killed=killed)
    if not matches:
        return None
    record = matches[0].record
    sureness: Sureness = "certain" if matches[0].proven and killed else "likely"
    why = f"{record.detail} killed it, to keep the machine from running out"
    return Finding(cause="out of memory: the machine", sureness=sureness, why=why, record=record)


def scheduler_logged(evidence: Evidence) -> Finding | None:
    """Slurm or Kubernetes said so in the log."""
    for text in reversed(evidence.texts):
        if text.kind == "oom kill":
            why = (
                "the scheduler's log says that the job's memory limit was reached and it was killed"
            )
            sureness: Sureness = "likely" if text.went_on else "certain"
            return Finding(cause="out of memory: its cgroup", sureness=sureness, why=why, text=text)
        if text.kind == "cancelled":
            reason = f" for its {text.reason}" if text.reason else ""
            why = f"the scheduler cancelled it{reason}"
            return Finding(cause="terminated", sureness="certain", why=why, text=text)
    return None


def run_recorded(evidence: Evidence) -> Finding | None:
    """A lowtide run recorded how it came out."""
    end = evidence.session.end if evidence.session else None
    if end is None or end.outcome not in ("stopped", "interrupted", "failed"):
        return None
    if end.outcome == "interrupted":
        why = "Ctrl-C or SIGINT; what was done is kept, and the same command resumes the run"
        return Finding(cause="interrupted", sureness="certain", why=why)
    problem = (end.problem or "no problem was written down").rstrip(".")
    if end.outcome == "stopped":
        return Finding(cause="stopped cleanly", sureness="certain", why=problem)
    texts = [one for one in find_death_texts(problem) if one.kind not in ("error", "signal")]
    if texts:
        return _from_message(evidence, texts[-1], "certain") or Finding(
            cause="failed", sureness="certain", why=problem
        )
    named = [cause for words, cause in _OUR_PROBLEMS.items() if words in problem]
    return Finding(cause=named[0] if named else "failed", sureness="certain", why=problem)


# Rules on what only points to a cause: a message, a signal, an exit code, a log that breaks off.


def message_names_it(evidence: Evidence) -> Finding | None:
    """A message of its own that names the cause."""
    texts = [text for text in evidence.texts if text.kind in _MESSAGES and not text.went_on]
    if not texts:
        return None
    text, seen = texts[-1], evidence.ending
    sureness: Sureness = "certain" if text.last_word and text.frames else "likely"
    if seen is not None and seen.signal in (KILL, TERMINATE):
        sureness = "likely"  # a launcher ends the other ranks so; or it is another death
    elif seen is not None and (seen.code or seen.signal):
        sureness = "certain"
    return _from_message(evidence, text, sureness)


def _from_message(evidence: Evidence, text: DeathText, sureness: Sureness) -> Finding | None:
    """The cause that a message names, with the tensor of the size it names."""
    row = _MESSAGES.get(text.kind)
    if row is None:
        return None
    tensor = None
    if text.requested is not None:
        evaluating = in_evaluation(text.frames)
        tensor = recognise(text.requested, evidence.dimensions, evaluating=evaluating)
    why = row.sentence
    if row.cause in ("out of GPU memory", "MemoryError"):
        why = _requested_in_words(text, row.sentence) + _tensor_in_words(tensor)
    return Finding(
        cause=row.cause,
        sureness=sureness,
        why=why,
        text=text,
        tensor=tensor,
        remedies=row.remedies,
    )


def _requested_in_words(text: DeathText, verb: str) -> str:
    if text.requested is None:
        return "its own message says so"
    words, gpu = f"{verb} {text.requested.text}", text.gpu
    if gpu is not None and gpu.free_bytes is not None:
        total = "" if gpu.total_bytes is None else f" of {format_bytes(gpu.total_bytes)}"
        words += f" when {format_bytes(gpu.free_bytes)}{total} were free"
    return words


def _tensor_in_words(tensor: TensorMatch | None) -> str:
    """`: exactly batch 8 × 1024 positions × 50304 vocabulary × 4 bytes, the logits in eval`."""
    if tensor is None:
        return ""
    if tensor.exact:
        return f": exactly {tensor.product}, {tensor.tensor}"
    return f": that would be {tensor.product}, {tensor.tensor} ({tensor.caution})"


def gpu_failed(evidence: Evidence) -> Finding | None:
    """The driver logged a fault of the card, and the process ended neither well nor by a person's signal."""
    seen = evidence.ending
    if seen is None or seen.signal in (INTERRUPT, KILL, TERMINATE):
        return None
    records = [one.record for one in evidence.kernel_matches("gpu fault", killed=True)]
    # Xid 45 is written when the driver cleans up after any process that was ended.
    faults = [record for record in records if record.detail != "Xid 45"]
    if not faults:
        return None
    return Finding(
        cause="crashed",
        sureness="likely",
        why=f"the driver reported a fault of the GPU, {faults[0].detail}",
        record=faults[0],
        remedies=_GPU_FAULT_REMEDIES,
    )


def signal_ended_it(evidence: Evidence) -> Finding | None:
    """It ended by a signal; SIGKILL does not say who sent it."""
    seen = evidence.ending
    interrupted = any(text.kind == "interrupt" and not text.went_on for text in evidence.texts)
    if seen is None or seen.signal is None:
        if not interrupted:
            return None
        seen = Exit(source="log", signal=INTERRUPT)
    number = seen.signal
    assert number is not None, "an exit without a signal was replaced above"
    if number == KILL:
        return _killed(evidence, seen)
    row = _SIGNALS.get(number, _ANY_SIGNAL)
    if row.cause == "crashed":
        return _crashed(evidence, seen, number, row)
    return Finding(
        cause=row.cause,
        sureness="certain" if seen.seen or interrupted else "likely",
        why=row.sentence.format(name=signal_name(number), code=_shell_code(seen)),
    )


def _shell_code(seen: Exit) -> str:
    return "" if seen.seen or seen.code is None else f", as exit code {seen.code} says in a shell"


def _crashed(evidence: Evidence, seen: Exit, number: int, row: Row) -> Finding:
    session = evidence.session
    if number == _ABORT and session is not None and session.kind not in ("", "watch"):
        # Our stages limit their memory, and Rust libraries abort when an allocation is refused.
        how = "SIGABRT" if seen.seen else f"exit code {seen.code}, which means SIGABRT in a shell"
        why = f"{how}: native code aborts like this when it is refused memory beyond the budget"
        return Finding(cause="MemoryError", sureness="likely", why=why)
    records = [one.record for one in evidence.kernel_matches("crash", "gpu fault")]
    library = next((record.detail for record in records if record.detail), "")
    why = row.sentence.format(name=signal_name(number), code=_shell_code(seen))
    logged = any(text.signal == number for text in evidence.texts)
    is_gpu_fault = bool(records) and records[0].kind == "gpu fault"
    return Finding(
        cause="crashed",
        sureness="certain" if seen.seen or logged or records else "likely",
        why=f"{why}, in {library}" if library else why,
        record=records[0] if records else None,
        remedies=_GPU_FAULT_REMEDIES if is_gpu_fault else row.remedies,
    )


def _killed(evidence: Evidence, seen: Exit) -> Finding:
    """SIGKILL without a record of the kernel's."""
    reading, short_of = evidence.reading, evidence.short_of
    ended = (
        "it ended by SIGKILL" if seen.seen else f"exit code {seen.code} means SIGKILL in a shell"
    )
    logs = [log for log in evidence.logs if not log.problem]
    breaks_off = bool(logs) and not any(log.texts for log in logs)
    if evidence.kernel_is_silent and (reading is not None or evidence.pids or breaks_off):
        why = f"{ended}, and the kernel's log has no kill for memory at that time"
        if short_of:
            why += "; memory was nearly gone, so a daemon that watches over it may have done it"
        sure = seen.seen and not short_of and reading is not None
        sureness: Sureness = "likely" if sure else "possible"
        return Finding(cause="killed from outside", sureness=sureness, why=why)
    if short_of is not None:
        return _short_of_memory(evidence, ended)
    if reading is not None and reading.available_bytes is not None and seen.seen:
        free = format_bytes(reading.available_bytes)
        why = f"{ended} while {free} of the machine's memory was available; the kernel's log could not be read"
        return Finding(cause="killed from outside", sureness="possible", why=why)
    if breaks_off:
        why = (
            f"{ended}, and its log breaks off without an error, as it does when the kernel kills a job to free "
            "memory; a person, a scheduler or a stopped container may have sent it as well"
        )
        return Finding(cause="out of memory: the machine", sureness="possible", why=why)
    why = (
        f"{ended}, and nothing shows who sent it: the kernel for lack of memory, a person, a scheduler, or a "
        "container that was stopped"
    )
    return Finding(cause="unknown", sureness="unknown", why=why)


def _short_of_memory(evidence: Evidence, ended: str) -> Finding:
    """It ended in a way that fits a kill for memory, and memory was nearly used up at the last look."""
    reading = evidence.reading
    assert reading is not None, "memory is short only where it was read"
    if evidence.short_of == "cgroup":
        held, limit = reading.private_bytes, reading.cgroup_limit_bytes or 0
        why = f"{ended} when it held {format_bytes(held)} of the {format_bytes(limit)} its cgroup allows"
        return Finding(cause="out of memory: its cgroup", sureness="possible", why=why)
    free = format_bytes(reading.available_bytes or 0)
    why = f"{ended} when only {free} of the machine's memory was left"
    return Finding(cause="out of memory: the machine", sureness="possible", why=why)


def exited_with_error(evidence: Evidence) -> Finding | None:
    """It ended itself with an error, or its log ends in one."""
    errors = [text for text in evidence.texts if text.kind == "error" and not text.went_on]
    seen = evidence.ending
    code = (seen.code if seen is not None else None) or 0
    if row := _EXIT_CODES.get(code):
        return Finding(cause=row.cause, sureness="likely", why=row.sentence, remedies=row.remedies)
    if errors and (code or errors[-1].last_word):
        line = errors[-1].line
        sureness: Sureness = "certain" if code else "likely"
        shown = line if len(line) <= 200 else line[:199] + "…"
        why = f"its last error was {shown}"
        return Finding(cause="failed", sureness=sureness, why=why, text=errors[-1])
    if code:
        why = f"it ended itself with exit code {code}, and no message explains why"
        return Finding(cause="failed", sureness="certain", why=why)
    return None


def journal_breaks_off(evidence: Evidence) -> Finding | None:
    """A journal without an end: its writer had no time to write one. Or `watch` could not see the end."""
    session = evidence.session
    if session is None or session.kind == "":
        return None
    ended = "its records break off"
    if session.end is not None:
        ended = "watch saw it end, but had not started it and so could not see its exit code"
    boot_at, last_at = evidence.machine.boot_at, session.last_at
    if evidence.short_of is not None and not evidence.kernel_is_silent:
        return _short_of_memory(evidence, ended)
    if session.end is None and boot_at is not None and last_at is not None and boot_at > last_at:
        why = f"{ended}, and this machine was restarted after that: it went down with the machine"
        return Finding(cause="killed from outside", sureness="possible", why=why)
    crashes = evidence.kernel_matches("crash")
    if crashes:
        record = crashes[0].record
        where = f" in {record.detail}" if record.detail else ""
        why = f"the kernel logged a fault of process {record.pid} ({record.name}){where}"
        return Finding(cause="crashed", sureness="likely", why=why, record=record)
    if session.kind != "watch" and evidence.kernel_is_silent:
        why = (
            f"{ended} without an end, and the kernel's log has no kill for memory and no crash; if memory "
            "beyond the budget was refused, its exit code was 134 (pass `--exit-code`)"
        )
        return Finding(cause="killed from outside", sureness="possible", why=why)
    if session.end is None:
        ended += " without an end"
        ended += ": watch itself was ended before the job" if session.kind == "watch" else ""
    return Finding(cause="unknown", sureness="unknown", why=f"{ended}, and nothing explains why")


def nothing_found(evidence: Evidence) -> Finding:
    """No rule holds."""
    why = "nothing that was found explains why it ended"
    if evidence.session is None and evidence.exit is None and not evidence.texts:
        gone = f"process {evidence.pid} no longer exists, and " if evidence.pid else ""
        why = f"{gone}there is no timeline, no exit code and no message that explains its end"
    return Finding(cause="unknown", sureness="unknown", why=why)


def _signal_of(evidence: Evidence) -> int | None:
    seen = evidence.ending
    return seen.signal if seen is not None else None


RULES: tuple[Callable[[Evidence], Finding | None], ...] = (
    is_running,
    watch_acted,
    has_finished,
    kernel_killed,
    cgroup_counted,
    memory_daemon_killed,
    scheduler_logged,
    run_recorded,
    message_names_it,
    gpu_failed,
    signal_ended_it,
    exited_with_error,
    journal_breaks_off,
    nothing_found,
)
"""The first that returns a finding decides."""
