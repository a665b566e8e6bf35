"""A comparison as tables and a few sentences; every figure says whether it was measured or predicted."""

from __future__ import annotations

import math
from typing import NamedTuple

from lowtide.svg import MemoryCurve
from lowtide.tools.compare.programs import EXTRA
from lowtide.tools.compare.run import Comparison, ProgramResult
from lowtide.tools.compare.run_boxed import Boxed
from lowtide.units import GIB, format_bytes, format_count, format_seconds, round_up_to_mib


class Table(NamedTuple):
    """Rows of words under a header, all of the same length."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(found: Comparison) -> list[Table]:
    """One table for each job that was compared."""
    full, found_tables = format_bytes(found.sample.full_bytes), []
    for job in dict.fromkeys(result.program.job for result in found.results):
        results = [result for result in found.results if result.program.job == job]
        all_finished = all(result.whole.ending == "finished" for result in results)
        known = "measured" if found.sample.is_everything and all_finished else "predicted"
        figures = ("program", "outcome", "peak", "time", "× lowtide", "per GiB")
        rows = tuple(_row(result, found) for result in results)
        found_tables.append(Table(title=job, header=(*figures, f"at {full} ({known})"), rows=rows))
    return found_tables


def introduce(found: Comparison) -> list[tuple[str, str]]:
    """What was compared, and what enforced the limit."""
    sample = found.sample
    enforced = f"enforced by the kernel ({found.how})"
    if found.how == "sampled":
        enforced = (
            "sampled: no cgroup can be made here, so what was above it was killed at the next look"
        )
    share = "all of it" if sample.is_everything else f"the first {sample.input_share:.1%} of it"
    rows = [
        (
            "sample",
            f"{format_bytes(sample.total_bytes)} of text in {format_count(sample.documents)} documents, "
            f"{share} (measured)",
        ),
        ("limit", f"{format_bytes(found.limit_bytes)} for each program alone, {enforced}"),
    ]
    if not sample.is_everything:
        rows.append(("full input", f"{format_bytes(sample.full_bytes)} of text (predicted)"))
    return rows


def remarks(found: Comparison) -> list[str]:
    """What a reader should know beside the figures."""
    sample, lines = found.sample, _token_remarks(found)
    if sample.cut_documents:
        times = "once" if sample.cut_documents == 1 else f"{sample.cut_documents} times"
        lines.append(f"documents too long for the sample were cut {times}, for all programs alike")
    if sample.replaced:
        lines.append(f"{sample.replaced} places that are not UTF-8 were replaced in the sample")
    budget_bytes = next((one.budget_bytes for one in found.results if one.budget_bytes), None)
    if budget_bytes is not None:
        memory = round_up_to_mib(budget_bytes)
        lines.append(f"lowtide ran with `--memory {memory}`: the box charges page cache too")
    if any(result.growth for result in found.results):
        lines.append("predicted: a straight line through two measured sizes, continued")
    if any(_at_full_size(result, found).startswith("more than") for result in found.results):
        lines.append("more than: it died there, so how much more it needs is not known")
    if any(_ratio(result, found).endswith("*") for result in found.results):
        lines.append("*: the times are those on the largest part of the sample that both finished")
    for program in found.left_out:
        missing = " and ".join(program.missing)
        bring = f"`pip install 'lowtide[{EXTRA}]'` brings it"
        lines.append(f"left out: {program.name} needs {missing}; {bring}")
    if found.kept:
        lines.append(f"kept: {found.kept}")
    return lines


def curves(found: Comparison) -> list[MemoryCurve]:
    """Every program's memory on the whole sample, for a picture; noted as `died at 53 %` unless it finished."""
    drawn = []
    for one in found.results:
        whole = one.whole
        at = "" if whole.share is None else f" at {math.floor(100 * whole.share)} %"
        drawn.append(
            MemoryCurve(
                panel=one.program.job,
                name=one.program.name,
                points=whole.points,
                died=whole.ending == "died",
                note="" if whole.ending == "finished" else f"{whole.ending}{at}",
                ours=one.program.ours,
            )
        )
    return drawn


def record(found: Comparison) -> dict[str, object]:
    """All figures, for `--json`."""
    sample = found.sample
    return {
        "limit_bytes": found.limit_bytes,
        "held_by": found.how,
        "sample": {
            "text_bytes": sample.total_bytes,
            "documents": sample.documents,
            "cut_documents": sample.cut_documents,
            "replaced": sample.replaced,
            "input_share": sample.input_share,
            "full_text_bytes": sample.full_bytes,
        },
        "programs": [_program_record(result, found) for result in found.results],
        "left_out": [
            {"program": program.key, "missing": program.missing, "extra": EXTRA}
            for program in found.left_out
        ],
        "kept": None if found.kept is None else str(found.kept),
    }


def _program_record(result: ProgramResult, found: Comparison) -> dict[str, object]:
    growth, guess = result.growth, _predict(result, found)
    return {
        "program": result.program.key,
        "name": result.program.name,
        "job": result.program.job,
        "budget_bytes": result.budget_bytes,
        "runs": [_run_record(run) for run in result.runs],
        "bytes_per_text_byte": round(growth.bytes_per_byte, 4) if growth else None,
        "predicted_peak_bytes": guess[0] if guess else None,
        "predicted_seconds": round(guess[1], 1) if guess else None,
        "predicted_at_least": guess[0] == _least_bytes(result, found) if guess else None,
    }


def _run_record(found: Boxed) -> dict[str, object]:
    return {
        "text_bytes": found.text_bytes,
        "outcome": found.ending,
        "share": found.share,
        "stage": found.stage or None,
        "seconds": round(found.seconds, 3),
        "peak_private_bytes": found.peak_private_bytes,
        "peak_charged_bytes": found.peak_charged_bytes,
        "tokens": found.tokens,
        "complaint": found.complaint or None,
        "private_bytes_over_time": [[round(at, 3), used] for at, used in found.points],
    }


def _row(result: ProgramResult, found: Comparison) -> tuple[str, ...]:
    whole, growth = result.whole, result.growth
    per_gib = format_bytes(round(growth.bytes_per_byte * GIB)) if growth else "not known"
    return (
        result.program.name,
        whole.in_words,
        format_bytes(whole.peak_private_bytes),
        format_seconds(whole.seconds),
        _ratio(result, found),
        # it fills its caches up to its budget, which no line can predict
        "in budget" if result.program.ours else per_gib,
        _at_full_size(result, found),
    )


def _ratio(result: ProgramResult, found: Comparison) -> str:
    """Time in times of lowtide's, on the largest size both finished; `*` if not the whole sample."""
    same_job = (one for one in found.results if one.program.job == result.program.job)
    ours = next((one for one in same_job if one.program.ours), None)
    if ours is None:
        return "-"
    if ours is result and result.whole.ending == "finished":
        return "1"
    theirs, own = (
        {run.text_bytes: run.seconds for run in one.runs if run.ending == "finished"}
        for one in (result, ours)
    )
    size = max(theirs.keys() & own.keys(), default=0)
    if not size:
        return "-"
    return f"{theirs[size] / own[size]:.1f}{'' if size == result.whole.text_bytes else '*'}"


def _predict(result: ProgramResult, found: Comparison) -> tuple[int, float] | None:
    """Memory and time of the line continued to the full input; None if they are not known.

    Never more than its budget for lowtide. For a program that died, never less than the limit it died at, nor
    less time than it had.
    """
    growth, full_bytes = result.growth, found.sample.full_bytes
    peak_bytes = growth.peak_at(full_bytes) if growth else 0
    seconds = growth.seconds_at(full_bytes) if growth else 0.0
    if result.whole.ending == "died":
        return max(peak_bytes, _least_bytes(result, found)), max(seconds, result.whole.seconds)
    if growth is None:
        return None
    return min(peak_bytes, result.budget_bytes or peak_bytes), seconds


def _least_bytes(result: ProgramResult, found: Comparison) -> int:
    """The memory that a program took before it died: it needs more, and how much is unknown."""
    died = result.whole.ending == "died"
    return max(found.limit_bytes, result.whole.peak_private_bytes) if died else 0


def _at_full_size(result: ProgramResult, found: Comparison) -> str:
    whole, guess = result.whole, _predict(result, found)
    if found.sample.is_everything and whole.ending == "finished":
        return "as measured"
    if guess is None:
        return "not known"
    peak, time = format_bytes(guess[0]), format_seconds(guess[1])
    if guess[0] == _least_bytes(result, found):
        peak = f"more than {peak}"
    if guess[0] == result.budget_bytes:
        peak = f"{peak} (its budget)"
    slower = "more than " if whole.ending == "died" and guess[1] == whole.seconds else ""
    return f"{peak}, {slower}{time}"


def _token_remarks(found: Comparison) -> list[str]:
    """Whether all programs made the same number of tokens: if not, they did not do the same work."""
    counts = {one.program.name: one.whole.tokens for one in found.results if one.whole.tokens}
    if len(counts) < 2:
        return []
    if len(set(counts.values())) == 1:
        count = format_count(next(iter(counts.values())))
        return [f"all that finished made the same {count} tokens"]
    each = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return [f"warning: they made different numbers of tokens: {each}"]
