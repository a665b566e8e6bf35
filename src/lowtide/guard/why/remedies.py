"""What to change, for each cause: the smallest thing first. Figures of ours say that they are estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lowtide.guard.why.causes import Cause, Finding, ending
from lowtide.guard.why.evidence import Evidence
from lowtide.units import MIB, format_bytes

_UNUSED_SHARE = 0.10
_SPARE_SHARE = 1.25
_GROWN = 1.5
_OURS = ("tokenize", "train-tokenizer", "train")
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_KEEP = "run it under `lowtide watch -- COMMAND`: its timeline tells the next death apart"


def remedies_for(evidence: Evidence, finding: Finding) -> list[str]:
    """In the order to try them."""
    end = evidence.session.end if evidence.session else None
    own = [end.remedy] if end is not None and end.remedy else []
    return list(dict.fromkeys([*own, *_BY_CAUSE[finding.cause](evidence, finding)]))


def _nothing(evidence: Evidence, finding: Finding) -> Iterator[str]:
    del evidence, finding
    yield from ()


def _running(evidence: Evidence, finding: Finding) -> Iterator[str]:
    del finding
    pid = evidence.living.pid if evidence.living else None
    if evidence.living is not None and evidence.living.state == "stopped":
        yield f"`kill -CONT {pid}` lets it go on, or `fg` in the shell that started it"
    if pid is not None:
        yield f"`lowtide watch --pid {pid}` shows where its memory leads"


def _go_on(evidence: Evidence, finding: Finding) -> Iterator[str]:
    del finding
    session = evidence.session
    said = (session.end.remedy or "") if session and session.end else ""
    if session is not None and session.kind in _OURS and "again" not in said:
        yield "run the same command again: it resumes from the last checkpoint, if there is one"


def _cgroup(evidence: Evidence, finding: Finding) -> Iterator[str]:
    del finding
    limit = _limit(evidence)
    if limit is not None:
        more = format_bytes(int(limit * _SPARE_SHARE))
        yield f"raise the limit if the machine has room: from {format_bytes(limit)} to {more}, to begin with"
    else:
        yield "raise the memory limit of its cgroup, container or job (`docker run --memory`, `#SBATCH --mem`)"
    yield from _take_less(evidence)
    yield "`lowtide watch --limit SIZE -- COMMAND` asks it to stop before the kernel kills it"


def _machine(evidence: Evidence, finding: Finding) -> Iterator[str]:
    del finding
    yield from _take_less(evidence)
    yield (
        "`lowtide watch --limit SIZE -- COMMAND` keeps it below what the machine has: it is asked to stop, "
        "and nothing else dies"
    )
    if evidence.machine.swap_bytes == 0:
        yield "this machine has no swap: a few GiB of it turn a sudden kill into a slow-down that can be seen"


def _take_less(evidence: Evidence) -> Iterator[str]:
    """What makes a job smaller, as far as its kind is known."""
    session = evidence.session
    if session is not None and session.kind in _OURS:
        yield "pass a smaller `--memory`: the same result in less, and it resumes"
        return
    growth = _growth(evidence)
    if growth:
        yield growth
    yield "take less at a time: smaller batches, fewer workers, files streamed instead of loaded whole"


def _growth(evidence: Evidence) -> str:
    session = evidence.session
    middle = (session.middle.private_bytes if session.middle else None) if session else None
    last = (session.last.private_bytes if session.last else None) if session else None
    if middle is None or last is None or last < _GROWN * max(middle, MIB):
        return ""
    return f"find what grows: it held {format_bytes(middle)} halfway and {format_bytes(last)} at the last look"


def _gpu(evidence: Evidence, finding: Finding) -> Iterator[str]:
    text = finding.text
    gpu = text.gpu if text else None
    if gpu is not None and gpu.other_bytes is not None and gpu.other_pid is not None:
        held = format_bytes(gpu.other_bytes)
        yield f"process {gpu.other_pid} holds {held} on the same GPU: end it, or use another GPU"
    yield from _fewer_windows(evidence, finding)
    unused = (gpu.unused_bytes or 0) if gpu else 0
    if gpu is not None and unused > _UNUSED_SHARE * (gpu.allocated_bytes or unused):
        held = format_bytes(unused)
        yield f"set `{_EXPANDABLE}`: torch held {held} that it could not use, for it lay in pieces"
    if finding.tensor is not None and "logits" in finding.tensor.tensor:
        yield "compute the loss in chunks of positions: then the logits never exist as a whole"
    if text is not None and text.asked is not None and text.asked.tells_nothing:
        yield (
            f"{text.asked.text} is a block that torch takes for any small tensor: the GPU was simply full, and "
            "this one is not to blame"
        )
    if evidence.session is not None and evidence.session.kind == "train":
        yield "pass a leaner `--recipe`, or let `lowtide plan` compute what fits"
    else:
        yield "`lowtide plan` computes what fits a GPU before anything runs"


def _fewer_windows(evidence: Evidence, finding: Finding) -> Iterator[str]:
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
    asked = finding.text.asked if finding.text else None
    if batch is None or gpu is None or asked is None:
        return None
    if gpu.allocated_bytes is None or gpu.free_bytes is None:
        return None
    grows = gpu.allocated_bytes // 2
    return max(1, min(batch - 1, batch * (grows + gpu.free_bytes) // (grows + asked.high_bytes)))


def _allocation(evidence: Evidence, finding: Finding) -> Iterator[str]:
    yield from _take_less(evidence)
    asked = finding.text.asked if finding.text else None
    total = evidence.machine.total_ram_bytes
    if asked is not None and total is not None and asked.low_bytes > total:
        yield f"{asked.text} is more than this machine's {format_bytes(total)}: map the file or work in parts"
    yield "see `ulimit -v`, `ulimit -d` and the limit of the container: a refusal is not yet a full machine"


def _outside(evidence: Evidence, finding: Finding) -> Iterator[str]:
    del finding
    yield "find who sent it: a person, a scheduler's limit, `docker stop`, a logout, a daemon that saves memory"
    if evidence.kernel.unread and not evidence.kernel.sources:
        yield "read the kernel's log as root to be sure: `sudo lowtide why …`"
    yield from _go_on(evidence, Finding(cause="unknown", sureness="unknown", why=""))
    if evidence.session is None:
        yield _KEEP


def _terminated(evidence: Evidence, finding: Finding) -> Iterator[str]:
    reason = finding.text.reason if finding.text else ""
    if "time limit" in reason:
        yield "ask the scheduler for more time, or save often and resume"
    elif not reason:
        yield "look into the scheduler's or service's log of that moment; `nohup` or tmux outlive a terminal"
    yield from _go_on(evidence, finding)


def _crash(evidence: Evidence, finding: Finding) -> Iterator[str]:
    if finding.text is not None and finding.text.kind == "shared memory":
        yield "give the container more shared memory (`docker run --shm-size=8g`), or use fewer workers"
        return
    if finding.record is not None and finding.record.kind == "gpu fault":
        yield "look the number up in NVIDIA's list of Xid errors: 13, 31 and 43 are mostly the program's fault"
        yield "48, 63, 74, 79 and 94 are faults of the card, its cable or its driver: see `nvidia-smi -q`"
        return
    seen = ending(evidence)
    if seen is not None and seen.signal == 7:
        yield "see whether /dev/shm or the disk of a mapped file is full: `df -h /dev/shm`"
    yield "run it with `python -X faulthandler`: it prints where in Python it was"
    yield "update or exchange the native library that is named, and test the memory if crashes wander"


def _disk(evidence: Evidence, finding: Finding) -> Iterator[str]:
    del finding
    free = evidence.machine.free_disk_bytes
    now = f" ({format_bytes(free)} are free there now)" if free is not None else ""
    yield f"free space where it writes{now}: old checkpoints, caches, `df -h` and `df -i` show where"
    yield "keep fewer checkpoints, or write them to another disk"
    yield from _go_on(evidence, Finding(cause="unknown", sureness="unknown", why=""))


def _watch_limit(evidence: Evidence, finding: Finding) -> Iterator[str]:
    del finding
    limit = evidence.session.limit_bytes if evidence.session else None
    if limit is not None:
        more = format_bytes(int(limit * _SPARE_SHARE))
        yield f"raise `--limit` if the machine has room: from {format_bytes(limit)} to {more}, to begin with"
    yield from _take_less(evidence)


def _failed(evidence: Evidence, finding: Finding) -> Iterator[str]:
    if finding.text is not None and finding.text.kind == "file size":
        yield "raise the limit: `ulimit -f unlimited`"
    elif finding.text is not None:
        yield "mend what the error names; memory had no part in it as far as can be seen"
    elif (seen := ending(evidence)) is not None and seen.code in (126, 127):
        yield "check the command's name, its path and its permissions: `command -v NAME` says what would run"
    elif not evidence.logs:
        yield "keep what it prints, `COMMAND 2> errors.txt`, and pass it here: `--log errors.txt`"
    else:
        yield "its output names no error: look up what this exit code means to the program"


def _unknown(evidence: Evidence, finding: Finding) -> Iterator[str]:
    del finding
    if not evidence.kernel.sources:
        yield "read the kernel's log as root: `sudo dmesg | grep -i 'killed process'`, or `sudo lowtide why …`"
    if not evidence.pids:
        yield "say which process it was, `--pid N`: the kernel's log names its victims by number"
    if not evidence.logs:
        yield "pass what it printed last: `--log FILE`"
    if ending(evidence) is None:
        yield "say what the shell said: `--exit-code N` (`echo $?` right after it)"
    yield f"next time {_KEEP}"


_BY_CAUSE: dict[Cause, Callable[[Evidence, Finding], Iterator[str]]] = {
    "finished": _nothing,
    "running": _running,
    "stopped cleanly": _go_on,
    "interrupted": _go_on,
    "out of memory: its cgroup": _cgroup,
    "out of memory: the machine": _machine,
    "out of GPU memory": _gpu,
    "MemoryError": _allocation,
    "killed from outside": _outside,
    "terminated": _terminated,
    "crashed": _crash,
    "disk full": _disk,
    "limit of watch": _watch_limit,
    "failed": _failed,
    "unknown": _unknown,
}


def _limit(evidence: Evidence) -> int | None:
    reading = evidence.reading
    if reading is not None and reading.cgroup_limit_bytes:
        return reading.cgroup_limit_bytes
    return evidence.session.limit_bytes if evidence.session else None
