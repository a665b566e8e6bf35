"""What each cause means to a user: a headline, what to change, and which evidence bears on it.

Remedies come in the order to try them, the smallest change first. Figures of ours say that they are estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lowtide.guard.why.evidence import INTERRUPT, KILL, TERMINATE, Evidence
from lowtide.guard.why.rules import CRASH_REMEDIES, Cause, Finding
from lowtide.journal import Session
from lowtide.units import MIB, format_bytes

_UNUSED_SHARE = 0.10
_SPARE_SHARE = 1.25
_GROWN = 1.5
_OURS = ("tokenize", "train-tokenizer", "export", "train")
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_WATCH_IT = "run it under `lowtide watch -- COMMAND`: its timeline will explain the next death"


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause as people read it."""

    headline: str
    remedies: tuple[str, ...] | Callable[[Evidence, Finding], Iterator[str]]
    kernel_matters: bool = False
    """Whether to say that the kernel's log holds nothing, or was not read."""
    signals: tuple[int, ...] = ()
    """Which of SIGINT, SIGKILL and SIGTERM speak for it; other signals speak for whatever was found."""


def remedies_for(evidence: Evidence, finding: Finding) -> list[str]:
    """What to change, in the order to try it."""
    end = evidence.session.end if evidence.session else None
    own = [end.remedy] if end is not None and end.remedy else []
    usual = CAUSES[finding.cause].remedies
    usual = usual if isinstance(usual, tuple) else tuple(usual(evidence, finding))
    return list(dict.fromkeys([*own, *(finding.remedies or usual)]))


def _running(evidence: Evidence, _finding: Finding) -> Iterator[str]:
    pid = evidence.living.pid if evidence.living else None
    if evidence.living is not None and evidence.living.state == "stopped":
        yield f"`kill -CONT {pid}` resumes it, or `fg` in the shell that started it"
    if pid is not None:
        yield f"`lowtide watch --pid {pid}` shows where its memory is heading"


def _resume(evidence: Evidence, finding: Finding) -> Iterator[str]:
    del finding
    session = evidence.session
    said = (session.end.remedy or "") if session and session.end else ""
    if session is not None and session.kind in _OURS and "again" not in said:
        does = "resumes from the last checkpoint, if there is one"
        if _begins_again(session):
            does = "begins again, for it ended before its first checkpoint"
        yield f"run the same command again: it {does}"


def _begins_again(session: Session) -> bool:
    """Whether there is nothing to resume from. Only `train` writes down every checkpoint."""
    return session.kind == "train" and not session.has_checkpoint


def _cgroup(evidence: Evidence, _finding: Finding) -> Iterator[str]:
    limit = evidence.session.limit_bytes if evidence.session else None
    if evidence.reading is not None and evidence.reading.cgroup_limit_bytes:
        limit = evidence.reading.cgroup_limit_bytes
    if limit is not None:
        yield _raise("the limit", limit)
    else:
        yield "raise the memory limit of its cgroup, container or job (`docker run --memory`, `#SBATCH --mem`)"
    yield from _take_less(evidence)
    yield "`lowtide watch --limit SIZE -- COMMAND` asks it to stop before the kernel kills it"


def _raise(name: str, limit_bytes: int) -> str:
    now, more = format_bytes(limit_bytes), format_bytes(int(limit_bytes * _SPARE_SHARE))
    return f"raise {name} if the machine has enough memory: from {now} to {more}"


def _machine(evidence: Evidence, _finding: Finding) -> Iterator[str]:
    yield from _take_less(evidence)
    yield (
        "`lowtide watch --limit SIZE -- COMMAND` keeps it below what the machine has: it is asked to stop, "
        "and nothing else dies"
    )
    if evidence.machine.swap_bytes == 0:
        yield "this machine has no swap: a few GiB of it turn a sudden kill into a visible slow-down"


def _take_less(evidence: Evidence) -> Iterator[str]:
    """What makes a job smaller, as far as its kind is known."""
    session = evidence.session
    if session is not None and session.kind in _OURS:
        resumes = "" if _begins_again(session) else ", and it resumes"
        yield f"pass a smaller `--memory`: the same result in less{resumes}"
        return
    middle = session.middle_bytes if session else None
    last = session.last.private_bytes if session and session.last else 0
    if middle is not None and last >= _GROWN * max(middle, MIB):
        sizes = f"{format_bytes(middle)} halfway and {format_bytes(last)} at the last look"
        yield f"find what grows: it held {sizes}"
    yield "take less at a time: smaller batches, fewer workers, files streamed instead of loaded whole"


def _gpu(evidence: Evidence, finding: Finding) -> Iterator[str]:
    text = finding.text
    gpu = text.gpu if text else None
    if gpu is not None and gpu.other_bytes is not None and gpu.other_pid is not None:
        held = format_bytes(gpu.other_bytes)
        yield f"process {gpu.other_pid} holds {held} on the same GPU: end it, or use another GPU"
    yield from _smaller_batch(evidence, finding)
    unused = (gpu.unused_bytes or 0) if gpu else 0
    if gpu is not None and unused > _UNUSED_SHARE * (gpu.allocated_bytes or unused):
        held = format_bytes(unused)
        yield f"set `{_EXPANDABLE}`: torch held {held} that it could not use, for it lay in pieces"
    if finding.tensor is not None and "logits" in finding.tensor.tensor:
        yield "compute the loss in chunks of positions: then the logits never exist as a whole"
    if text is not None and text.requested is not None and text.requested.is_small_block:
        yield (
            f"{text.requested.text} is a block that torch takes for any small tensor: the GPU was simply full, "
            "and this one is not to blame"
        )
    if evidence.session is not None and evidence.session.kind == "train":
        yield "pass a leaner `--recipe`, or let `lowtide plan` compute what fits"
    else:
        yield "`lowtide plan` computes what fits a GPU before anything runs"


def _smaller_batch(evidence: Evidence, finding: Finding) -> Iterator[str]:
    batch = finding.tensor.batch if finding.tensor else evidence.dimensions.batch
    where = (
        "evaluate with" if finding.tensor and finding.tensor.tensor.endswith("in eval") else "use"
    )
    fits = _batch_that_fits(finding, batch)
    steps = "; as many tokens a step with gradient accumulation" if where == "use" else ""
    if batch is not None and batch > 1 and fits is not None:
        yield (
            f"{where} a batch of {fits} instead of {batch} (estimated: as if half of what torch holds "
            f"grew with the batch){steps}"
        )
    elif batch is not None and batch > 1:
        yield f"{where} a batch of {batch // 2} instead of {batch}{steps}"
    else:
        yield f"{where} a smaller batch or a shorter context{steps}"


def _batch_that_fits(finding: Finding, batch: int | None) -> int | None:
    """Weights and optimizer states stay, activations shrink: half of what is held is taken for each."""
    gpu = finding.text.gpu if finding.text else None
    asked = finding.text.requested if finding.text else None
    if batch is None or gpu is None or asked is None:
        return None
    if gpu.allocated_bytes is None or gpu.free_bytes is None:
        return None
    grows = gpu.allocated_bytes // 2
    return max(1, min(batch - 1, batch * (grows + gpu.free_bytes) // (grows + asked.high_bytes)))


def _allocation(evidence: Evidence, finding: Finding) -> Iterator[str]:
    yield from _take_less(evidence)
    asked = finding.text.requested if finding.text else None
    total = evidence.machine.total_ram_bytes
    if asked is not None and total is not None and asked.low_bytes > total:
        yield f"{asked.text} is more than this machine's {format_bytes(total)}: map the file or work in parts"
    yield "see `ulimit -v`, `ulimit -d` and the limit of the container: the machine itself may not be full"


def _outside(evidence: Evidence, finding: Finding) -> Iterator[str]:
    yield "find who sent it: a person, a scheduler's limit, `docker stop`, a logout, a daemon that saves memory"
    if evidence.kernel.unread and not evidence.kernel.sources:
        yield "read the kernel's log as root to be sure: `sudo lowtide why …`"
    yield from _resume(evidence, finding)
    if evidence.session is None:
        yield _WATCH_IT


def _terminated(evidence: Evidence, finding: Finding) -> Iterator[str]:
    reason = finding.text.reason if finding.text else ""
    if "time limit" in reason:
        yield "ask the scheduler for more time, or save often and resume"
    elif not reason:
        yield "read the scheduler's or service's log of that moment; `nohup` and tmux outlive a terminal"
    yield from _resume(evidence, finding)


def _disk(evidence: Evidence, finding: Finding) -> Iterator[str]:
    free = evidence.machine.free_disk_bytes
    now = f" ({format_bytes(free)} are free there now)" if free is not None else ""
    yield f"free space where it writes{now}: old checkpoints, caches, `df -h` and `df -i` show where"
    yield "keep fewer checkpoints, or write them to another disk"
    yield from _resume(evidence, finding)


def _watch_limit(evidence: Evidence, _finding: Finding) -> Iterator[str]:
    limit = evidence.session.limit_bytes if evidence.session else None
    if limit is not None:
        yield _raise("`--limit`", limit)
    yield from _take_less(evidence)


def _failed(evidence: Evidence, finding: Finding) -> Iterator[str]:
    if finding.text is not None:
        yield "fix what the error names; as far as can be seen, memory was not involved"
    elif not evidence.logs:
        yield "keep what it prints, `COMMAND 2> errors.txt`, and pass it here: `--log errors.txt`"
    else:
        yield "its output names no error: look up what this exit code means to the program"


def _unknown(evidence: Evidence, _finding: Finding) -> Iterator[str]:
    if not evidence.kernel.sources:
        yield "read the kernel's log as root: `sudo dmesg | grep -i 'killed process'`, or `sudo lowtide why …`"
    if not evidence.pids:
        yield "name the process, `--pid N`: the kernel's log names its victims by number"
    if not evidence.logs:
        yield "pass what it printed last: `--log FILE`"
    if evidence.ending is None:
        yield "pass the exit code that the shell saw: `--exit-code N` (`echo $?` right after it)"
    yield f"next time {_WATCH_IT}"


CAUSES: dict[Cause, CauseRow] = {
    "finished": CauseRow("It finished", ()),
    "running": CauseRow("It is still running", _running),
    "stopped cleanly": CauseRow("It stopped cleanly", _resume),
    "interrupted": CauseRow("It was interrupted", _resume, signals=(INTERRUPT,)),
    "out of memory: its cgroup": CauseRow(
        "Out of memory in its own cgroup", _cgroup, kernel_matters=True, signals=(KILL,)
    ),
    "out of memory: the machine": CauseRow(
        "The machine was out of memory", _machine, kernel_matters=True, signals=(KILL, TERMINATE)
    ),
    "out of GPU memory": CauseRow("Out of GPU memory", _gpu),
    "MemoryError": CauseRow("An allocation was refused", _allocation),
    "killed from outside": CauseRow(
        "It was killed from outside", _outside, kernel_matters=True, signals=(KILL,)
    ),
    "terminated": CauseRow(
        "It was asked to end", _terminated, kernel_matters=True, signals=(TERMINATE,)
    ),
    "crashed": CauseRow("It crashed", CRASH_REMEDIES, kernel_matters=True),
    "disk full": CauseRow("The disk was full", _disk),
    "limit of watch": CauseRow(
        "It was ended by lowtide watch", _watch_limit, signals=(KILL, TERMINATE)
    ),
    "failed": CauseRow("It failed", _failed),
    "unknown": CauseRow("Unknown", _unknown, kernel_matters=True),
}
