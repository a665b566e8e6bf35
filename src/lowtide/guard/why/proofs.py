"""What somebody wrote down: the run itself, `watch`, the kernel, a counter, a scheduler."""

from __future__ import annotations

from lowtide.guard.why.causes import Cause, Finding, Sureness, ending
from lowtide.guard.why.death_texts import find_death_texts
from lowtide.guard.why.evidence import Evidence, LivingProcess, ToldAlert
from lowtide.guard.why.match_kernel import KernelMatch, kernel_matches
from lowtide.guard.why.signs import from_text
from lowtide.units import format_bytes

_KILL, _TERMINATE = 9, 15
_LONG_BEFORE_SECONDS = 600.0


def running(evidence: Evidence) -> Finding | None:
    """It is there, or holds the lock of its folder."""
    living = evidence.living
    if living is not None and living.state != "zombie":
        return Finding(cause="running", sureness="certain", why=_how_it_lives(living))
    if evidence.lock_held:
        why = "the lock of its folder is held, by a process on this machine or another"
        return Finding(cause="running", sureness="certain", why=why)
    return None


def _how_it_lives(living: LivingProcess) -> str:
    why = f"process {living.pid} ({living.name}) is there"
    if living.private_bytes is not None:
        trees = "" if living.process_count == 1 else f" in {living.process_count} processes"
        why += f", with {format_bytes(living.private_bytes)} of private memory{trees}"
    if living.state in ("stopped", "tracing-stop"):
        return f"{why}; it is paused, by Ctrl-Z or SIGSTOP"
    if living.state == "disk-sleep":
        return f"{why}; at this moment it waits for a disk, or for memory to be read back from swap"
    return why


def by_watch(evidence: Evidence) -> Finding | None:
    """`watch` asked it to stop, or ended it, and it ended."""
    session = evidence.session
    acts = [one for one in session.alerts if one.stage in ("ask", "end")] if session else []
    if session is None or session.end is None or not acts:
        return None
    end, last = session.end, acts[-1]
    forced = end.forced or last.stage == "end"
    if end.signal == _KILL and (end.oom_kills or not forced):
        return None  # the kernel was faster, or somebody else
    done = "sent SIGKILL" if forced and end.signal == _KILL else "asked it to stop"
    why = f"watch {done}, because {last.reason or 'a limit was reached'}"
    return Finding(cause="limit of watch", sureness=_sure_of_watch(evidence, last), why=why)


def _sure_of_watch(evidence: Evidence, last: ToldAlert) -> Sureness:
    end = ending(evidence)
    if end is not None and end.signal in (_KILL, _TERMINATE):
        return "certain"
    if last.at is not None and (evidence.ended_at or 0) - last.at > _LONG_BEFORE_SECONDS:
        return "possible"
    return "likely"


def finished(evidence: Evidence) -> Finding | None:
    """It ended by itself, with nothing to complain of."""
    session = evidence.session
    end = session.end if session else None
    seen = ending(evidence)
    if end is not None and end.outcome == "done":
        return Finding(cause="finished", sureness="certain", why="its last record says done")
    if seen is None or seen.code != 0 or seen.signal is not None:
        return None
    why = "it ended by itself with exit code 0"
    if end is not None and end.oom_kills:
        count = f"{end.oom_kills} of its processes" if end.oom_kills > 1 else "one of its processes"
        why += f", although the kernel killed {count} for memory on the way: look at what it made"
    return Finding(cause="finished", sureness="certain", why=why)


def by_kernel(evidence: Evidence) -> Finding | None:
    """The kernel wrote that it killed it for memory."""
    seen = ending(evidence)
    killed = seen is not None and seen.signal == _KILL
    matches = kernel_matches(evidence, "out of memory", killed=killed)
    if not matches:
        return None
    best = next((one for one in matches if one.record.pid == evidence.pid), matches[0])
    record = best.record
    size = record.anonymous_bytes
    held = f", when it held {format_bytes(size)}" if size is not None else ""
    why = f"the kernel killed {record.name or 'it'} (process {record.pid}){held}"
    if record.scope == "cgroup":
        why += f"; the cgroup's memory limit was reached{_limit_in_words(evidence)}"
    else:
        why += "; the whole machine had no memory left"
    cause: Cause = (
        "out of memory: its cgroup" if record.scope == "cgroup" else "out of memory: the machine"
    )
    return Finding(
        cause=cause, sureness=_sure_of_kernel(evidence, best, killed), why=why, record=record
    )


def _sure_of_kernel(evidence: Evidence, match: KernelMatch, killed: bool) -> Sureness:
    """Certain where number and time fit, and it was the process itself or the end was SIGKILL's."""
    if not match.proven:
        return "likely"
    itself = match.record.pid in (evidence.pid, evidence.session.pid if evidence.session else None)
    return "certain" if itself or killed else "likely"


def _limit_in_words(evidence: Evidence) -> str:
    session = evidence.session
    reading = evidence.reading
    limit = (reading.cgroup_limit_bytes if reading else None) or (
        session.limit_bytes if session and session.how.startswith("cgroup") else None
    )
    return "" if limit is None else f", {format_bytes(limit)}"


def by_counters(evidence: Evidence) -> Finding | None:
    """The counter of its own cgroup: so many of its processes were killed for memory."""
    end = evidence.session.end if evidence.session else None
    if end is None or not end.oom_kills:
        return None
    seen = ending(evidence)
    killed = seen is not None and seen.signal == _KILL
    times = "once" if end.oom_kills == 1 else f"{end.oom_kills} times"
    why = f"its cgroup's limit{_limit_in_words(evidence)} was reached, and the kernel killed in it {times}"
    if not killed:
        why += "; the process that was killed was one of its children, or it ended after that"
    sureness: Sureness = "certain" if killed else "likely"
    return Finding(cause="out of memory: its cgroup", sureness=sureness, why=why)


def by_memory_daemon(evidence: Evidence) -> Finding | None:
    """systemd-oomd or earlyoom wrote that it killed it."""
    seen = ending(evidence)
    killed = seen is not None and seen.signal in (_KILL, _TERMINATE)
    matches = kernel_matches(evidence, "memory daemon", killed=killed)
    if not matches:
        return None
    record = matches[0].record
    sureness: Sureness = "certain" if matches[0].proven and killed else "likely"
    why = f"{record.detail} killed it, to keep the machine from running out"
    return Finding(cause="out of memory: the machine", sureness=sureness, why=why, record=record)


def by_scheduler(evidence: Evidence) -> Finding | None:
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


def by_own_record(evidence: Evidence) -> Finding | None:
    """A run of ours wrote how it came out."""
    end = evidence.session.end if evidence.session else None
    if end is None or end.outcome not in ("stopped", "interrupted", "failed"):
        return None
    if end.outcome == "interrupted":
        why = "Ctrl-C or SIGINT; what was done is kept, and the same command resumes the run"
        return Finding(cause="interrupted", sureness="certain", why=why)
    problem = (end.problem or "no problem was written down").rstrip(".")
    if end.outcome == "stopped":
        return Finding(cause="stopped cleanly", sureness="certain", why=problem)
    return _from_problem(evidence, problem)


def _from_problem(evidence: Evidence, problem: str) -> Finding:
    texts = [one for one in find_death_texts(problem) if one.kind not in ("error", "signal")]
    if texts:
        return from_text(evidence, texts[-1], "certain") or Finding(
            cause="failed", sureness="certain", why=problem
        )
    for words, cause in _OURS.items():
        if words in problem:
            return Finding(cause=cause, sureness="certain", why=problem)
    return Finding(cause="failed", sureness="certain", why=problem)


_OURS: dict[str, Cause] = {
    "(EDQUOT)": "disk full",
    "does not fit into the GPU's memory": "out of GPU memory",
    "an allocation beyond the budget was refused": "MemoryError",
    "MemoryError": "MemoryError",
}
"""Our own sentences, and what they mean."""
