"""The settings of `watch`, checked, with values of the machine where none were given."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.guard.job import is_above_us
from lowtide.memory.limits import AVAILABLE, machine_limit
from lowtide.memory.pressure import Stage, Thresholds, floor_bytes
from lowtide.memory.proc_files import machine_memory
from lowtide.units import MIB, format_bytes, parse_bytes

_FENCE_SHARE = 0.05
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")
_LEAST_FENCE_BYTES = 64 * MIB
"""The kernel's limit lies at least this far above the guard's: a job that can be asked is not killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """How a job is watched."""

    thresholds: Thresholds
    limit_in_words: str
    fence_bytes: int | None
    """What the job's own cgroup enforces; None where no limit was named, or only notes are wanted."""
    timeline: Path
    alerts: Path
    grace_seconds: float = 60.0
    interval_seconds: float = 1.0
    stop_file: Path | None = None
    on_alert: str | None = None


def choose_settings(
    *,
    limit: str | None,
    floor: str | None,
    most: str,
    timeline: str | Path | None,
    alerts: str | Path | None,
    stop_file: str | Path | None,
    on_alert: str | None,
    grace_seconds: float,
    interval_seconds: float,
    environment: Mapping[str, str],
) -> WatchSettings:
    """Turn the options into settings. Sizes that are not given follow from the machine.

    The default limit is the least of cgroups, Slurm's grant and the RAM there is, free or not.
    """
    for seconds in (grace_seconds, interval_seconds):
        if not 0 < seconds < math.inf:
            raise UsageError(f"{seconds} is not a time", remedy="pass a number of seconds")
    if most not in ("note", "ask", "end"):
        raise UsageError(f"--until {most!r} is not a step", remedy="pass note, ask or end")
    _, total = machine_memory()
    candidates = machine_limit(slurm=environment).candidates
    firm = [(one.total_bytes, one.source) for one in candidates if one.source != AVAILABLE]
    whole, source = min([*firm, (total, "the machine's memory")])
    fence_bytes = None
    if limit is None:
        limit_bytes, in_words = whole, f"{format_bytes(whole)}, {source}"
    else:
        limit_bytes = _size(limit, "limit", whole=whole)
        more = f", though {source} allows {format_bytes(whole)}" if limit_bytes > whole else ""
        in_words = format_bytes(limit_bytes) + more
        if most != "note":
            fence_bytes = limit_bytes + max(_LEAST_FENCE_BYTES, round(_FENCE_SHARE * limit_bytes))
    keep_bytes = floor_bytes(total) if floor is None else _size(floor, "floor", whole=total)
    named = f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl"
    return WatchSettings(
        thresholds=Thresholds(
            limit_bytes=limit_bytes, floor_bytes=keep_bytes, most=Stage[most.upper()]
        ),
        limit_in_words=in_words,
        fence_bytes=fence_bytes,
        timeline=Path(timeline) if timeline else timelines_folder(environment) / named,
        alerts=Path(alerts) if alerts else _state_folder(environment) / "alerts.log",
        grace_seconds=grace_seconds,
        interval_seconds=interval_seconds,
        stop_file=Path(stop_file) if stop_file else None,
        on_alert=on_alert,
    )


def one_of(command: Sequence[str], pid: int | None) -> None:
    """Raise unless there is either a command or a process."""
    if bool(command) == (pid is not None):
        raise UsageError(
            "nothing to watch"
            if pid is None
            else "a command and a process cannot be watched at once",
            remedy="pass `-- COMMAND` or `--pid N`",
        )


def refuse_own_end(pid: int, most: Stage) -> None:
    """Raise if ending the process would end this watch, or, as process 1, everything."""
    if most > Stage.NOTE and (pid == 1 or is_above_us(pid)):
        raise UsageError(
            f"process {pid} cannot be asked to stop: this watch runs inside it",
            remedy="pass `--until note`",
        )


def timelines_folder(environment: Mapping[str, str]) -> Path:
    """Where timelines go by default."""
    return _state_folder(environment) / "watch"


def _state_folder(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local/state") / "lowtide"


def _size(text: str, setting: str, *, whole: int) -> int:
    """Bytes of a size such as `40GB`, or of a share such as `80%` of the whole."""
    example = "80%" if setting == "limit" else "2GiB"
    if text.strip().endswith("%"):
        share = _SHARE.fullmatch(text.strip())
        if share is None or not 0 < float(share[1]) <= 100:
            raise UsageError(
                f"{text!r} is not a share", remedy="pass a size", setting=setting, value=example
            )
        return round(whole * float(share[1]) / 100)
    size = parse_bytes(text)
    if size <= 0:
        raise UsageError(
            f"{setting} cannot be {text}", remedy="pass a size", setting=setting, value=example
        )
    return size
