"""The demo in words: each stage with what it took, and at the end where everything lies and what is next."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from lowtide.tools.demo.record import as_plain
from lowtide.tools.demo.stages import DEFAULT_FOLDER, TITLES, VOCABULARY, Key, Stage
from lowtide.tools.demo.story import Demo, StageDone
from lowtide.units import GIB, format_bytes, format_count, format_seconds

Facts: TypeAlias = Mapping[str, Any]
"""What a command printed with `--json`."""

_INSTALL = "pip install 'lowtide[train]'"


def stage_lines(done: StageDone) -> list[str]:
    """A finished stage: its number, time and peak; below, its command and its result."""
    stage, record = done.stage, done.record
    budget = "" if stage.budget_bytes is None else f" of {format_bytes(stage.budget_bytes)}"
    peak = f", peak {format_bytes(record.peak_private_bytes)}{budget}"
    if stage.key == "compare":  # its peak is that of the boxes
        peak = ""
    seconds = format_seconds(record.seconds)
    head = f"{_number(stage):>5}  {stage.title:<18} {seconds:>6}{peak}{_remark(done)}"
    command = [] if stage.shown is None else [f"$ {stage.shown}"]
    return [
        head,
        *(f"       {line}" for line in [*command, *_result_lines(stage.key, record.facts or {})]),
    ]


def progress_line(stage: Stage, seconds: float, last_line: str) -> str:
    """A running stage, with the last line that its command printed."""
    words = f": {last_line}" if last_line else ""
    return f"{_number(stage):>5}  {stage.title}, {format_seconds(seconds)}{words}"


def _number(stage: Stage) -> str:
    keys = list(TITLES)
    return f"{keys.index(stage.key) + 1}/{len(keys)}"


def opening_line(folder: Path) -> str:
    """Says in which folder the commands run."""
    return f"Every command runs in {folder}, where you can type it as well."


def _remark(done: StageDone) -> str:
    """When the figures were measured, unless it was all in this start."""
    if done.before:
        return " (done before)"
    return " (resumed; since this start)" if done.record.went_on else ""


def _result_lines(key: Key, facts: Facts) -> list[str]:
    """The result of a stage in a few lines; every figure is the command's own."""
    match key:
        case "corpus":
            return [_corpus_line(facts)]
        case "tokenizer":
            learnt = facts["learnt"][0]
            size = f"{learnt['bytes_per_token']:.2f} bytes a token"
            return [
                f"{format_count(learnt['tokens'])} tokens from {format_count(facts['words'])} words, {size}"
            ]
        case "tokenize":
            empty = facts["empty_documents"]
            left_out = f", {format_count(empty)} empty ones left out" if empty else ""
            made = f"{format_count(facts['tokens'])} tokens"
            return [f"{made} of {format_count(facts['documents'])} documents{left_out}"]
        case "verify":
            compared = facts["compared_documents"]
            equal = f"{compared} documents equal to their text" if compared else facts["comparison"]
            return [f"every checksum right; {equal}"]
        case "plan":
            return [_plan_line(facts)]
        case "train":
            guess = math.log(VOCABULARY)
            return [
                f"{facts['step']} steps; loss {facts['best_loss']:.2f} on held-out text (guessing: {guess:.2f})"
            ]
        case "sample":
            return _sample_lines(facts)
        case "export":
            return ["a GPT-2 that transformers opens"]
        case "compare":
            return [_way_line(way) for way in facts["ways"]]
        case "report":
            return [str(facts["verdict"])]


def _corpus_line(facts: Facts) -> str:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    size = format_bytes(facts["text_bytes"])
    return f"the sources of Python {python}: {format_count(facts['files'])} files, {size}"


def _plan_line(facts: Facts) -> str:
    model = facts["models"][0]
    size = f"{format_count(model['parameters'])} parameters, {model['steps']} steps"
    memory = f"{format_bytes(model['peak_bytes'])} beside torch (predicted)"
    if model["hours"] is None:
        return f"{size}: {memory}"
    return (
        f"{size}: {memory}, about {format_seconds(model['hours'] * 3600)} ({model['hours_basis']})"
    )


def _sample_lines(facts: Facts) -> list[str]:
    """The first lines of the text; empty ones are left out."""
    text = f"{facts['prompt']}{facts['samples'][0]}"
    return [line.rstrip() for line in text.splitlines() if line.strip()][:6]


def _way_line(way: Facts) -> str:
    """How a way ended; with lowtide's budget, which holds for any text, or what others would take for more."""
    whole = way["runs"][0]
    share = "" if whole["share"] is None else f" after {math.floor(100 * whole['share'])} %"
    ended = "finished" if whole["outcome"] == "finished" else f"{whole['outcome']}{share}"
    line = f"{way['name']}: {ended}, peak {format_bytes(whole['peak_private_bytes'])}"
    budget, growth = way["budget_bytes"], way["bytes_per_text_byte"]
    if budget is not None:
        return f"{line} (its budget is {format_bytes(budget)})"
    if growth is None:
        return line
    return f"{line}; a GiB of text would take {format_bytes(round(growth * GIB))} (predicted)"


def closing_rows(demo: Demo) -> list[tuple[str, str]]:
    """Figures, paths and the next command; the folder's name is as it was given."""
    folder, with_torch = demo.folder, demo.settings.with_torch
    rows = [
        ("done", f"{format_seconds(demo.seconds)}; peaks: {_highest_peaks(demo)} (sampled)"),
        ("report", str(folder / ("model" if with_torch else "tokens") / "report.html")),
        ("comparison", str(folder / "compare.html")),
    ]
    if with_torch:
        opens = f"AutoModelForCausalLM.from_pretrained({str(folder / 'for-transformers')!r})"
        rows.append(("model", f"{folder / 'for-transformers'}; where transformers is: {opens}"))
    else:
        names = ", ".join(TITLES[key] for key in _left_out(demo))
        rows.append(("left out", f"{names}: they need torch"))
        rows.append(("next", f"{_INSTALL}, then `{_call(folder)}` again"))
    rows.append(("your text", "lowtide tokenize YOUR_FILES --out tokens --memory 2GiB"))
    rows.append(("then", "lowtide plan tokens"))
    rows.append(("clean up", f"{_call(folder)} --clean"))
    return rows


def _left_out(demo: Demo) -> list[Key]:
    """Stages that are left out because torch is not installed."""
    return [] if demo.settings.with_torch else ["train", "sample", "export"]


def _highest_peaks(demo: Demo) -> str:
    """The highest peaks of the stages of text and of training, each with its budget."""
    highest: dict[str, tuple[int, int]] = {}
    for one in demo.stages:
        budget, work = one.stage.budget_bytes, "training" if one.stage.needs_torch else "text"
        if budget is not None:
            peak = max(highest.get(work, (0, 0))[0], one.record.peak_private_bytes)
            highest[work] = (peak, budget)
    return ", ".join(
        f"{work} {format_bytes(peak)} of {format_bytes(budget)}"
        for work, (peak, budget) in highest.items()
    )


def _call(folder: Path) -> str:
    where = [] if str(folder) == DEFAULT_FOLDER else ["--out", str(folder)]
    return shlex.join(["lowtide", "demo", *where])


def demo_record(demo: Demo) -> dict[str, object]:
    """All figures, for `--json`."""
    return {
        "folder": str(demo.folder),
        "memory_bytes": demo.settings.memory_bytes,
        "seconds": round(demo.seconds, 3),
        "stages": [
            {
                "stage": one.stage.key,
                "budget_bytes": one.stage.budget_bytes,
                "done_before": one.before,
                **as_plain(one.record),
            }
            for one in demo.stages
        ],
        "left_out": _left_out(demo),
    }
