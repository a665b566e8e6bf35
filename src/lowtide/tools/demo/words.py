"""The demo in words: each stage with what it took, and at the end where everything lies and what is next."""

from __future__ import annotations

import shlex
from pathlib import Path

from lowtide.tools.demo.run import Demo, StageDone
from lowtide.tools.demo.stages import DEFAULT_FOLDER, Stage
from lowtide.units import format_bytes, format_seconds

_INSTALL = "pip install 'lowtide[train]'"


def opening_line(folder: Path) -> str:
    """Says in which folder the commands run."""
    return f"Every command runs in {folder}, where you can type it as well."


def progress_line(stage: Stage, seconds: float, last_line: str) -> str:
    """A running stage, with the last line that its command printed."""
    words = f": {last_line}" if last_line else ""
    return f"{stage.number:>5}  {stage.title}, {format_seconds(seconds)}{words}"


def stage_lines(done: StageDone) -> list[str]:
    """A finished stage: its number, time and peak; below, its command and its result."""
    stage = done.stage
    budget = "" if stage.budget_bytes is None else f" of {format_bytes(stage.budget_bytes)}"
    took = f", peak {format_bytes(done.peak_private_bytes)}{budget}"
    if done.already_done:
        took = " (done before)"
    elif stage.key == "compare":  # its peak is that of the boxes
        took = ""
    elif done.resumed:
        took += " (resumed; since this start)"
    head = f"{stage.number:>5}  {stage.title:<18} {format_seconds(done.seconds):>6}{took}"
    command = [f"$ lowtide {stage.call}"] if stage.has_command else []
    return [head, *(f"       {line}" for line in [*command, *stage.describe(done.facts)])]


def closing_rows(demo: Demo) -> list[tuple[str, str]]:
    """Figures, paths and the next command; the folder's name is as it was given."""
    folder, with_torch = demo.folder, demo.settings.with_torch
    name = [] if str(folder) == DEFAULT_FOLDER else ["--out", str(folder)]
    call = shlex.join(["lowtide", "demo", *name])
    rows = [
        ("done", "; ".join([format_seconds(demo.seconds), *_highest_peaks(demo)])),
        ("report", str(folder / ("model" if with_torch else "tokens") / "report.html")),
        ("comparison", str(folder / "compare.html")),
    ]
    if with_torch:
        opens = f"AutoModelForCausalLM.from_pretrained({str(folder / 'for-transformers')!r})"
        rows.append(
            ("model", f"{folder / 'for-transformers'}; with transformers installed: {opens}")
        )
    else:
        titles = ", ".join(stage.title for stage in demo.left_out)
        rows.append(("left out", f"{titles}: they need torch"))
        rows.append(("next", f"{_INSTALL}, then `{call}` again"))
    rows.append(("your text", "lowtide tokenize YOUR_FILES --out tokens --memory 2GiB"))
    rows.append(("then", "lowtide plan tokens"))
    rows.append(("clean up", f"{call} --clean"))
    return rows


def cleaned_rows(folder: Path, removed: list[Path]) -> list[tuple[str, str]]:
    """What `demo --clean` removed, and whether the folder stays."""
    rows = [("removed", ", ".join(map(str, removed)) or "an unfinished start")]
    if folder.exists():
        rows.append(("stays", f"{folder}: it holds files that are not the demo's"))
    return rows


def _highest_peaks(demo: Demo) -> list[str]:
    """The highest peaks of the stages of text and of training, each with its budget."""
    highest: dict[str, StageDone] = {}
    for one in demo.stages:
        work = "training" if one.stage.needs_torch else "text"
        if one.stage.budget_bytes is not None and not one.already_done:
            known = highest.get(work, one)
            highest[work] = max(known, one, key=lambda each: each.peak_private_bytes)
    peaks = [
        f"{work} {format_bytes(one.peak_private_bytes)} of {format_bytes(one.stage.budget_bytes or 0)}"
        for work, one in highest.items()
    ]
    return [f"peaks: {', '.join(peaks)} (sampled)"] if peaks else []


def demo_record(demo: Demo) -> dict[str, object]:
    """All figures, for `--json`."""
    return {
        "folder": str(demo.folder),
        "memory_bytes": demo.settings.memory_bytes,
        "seconds": round(demo.seconds, 3),
        "stages": [
            {
                "stage": one.stage.key,
                "command": one.stage.call,
                "budget_bytes": one.stage.budget_bytes,
                "done_before": one.already_done,
                "resumed": one.resumed,
                "seconds": round(one.seconds, 3),
                "peak_private_bytes": one.peak_private_bytes,
                "facts": one.facts,
            }
            for one in demo.stages
        ],
        "left_out": [stage.key for stage in demo.left_out],
    }
