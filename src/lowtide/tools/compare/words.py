"""A comparison as tables and a few sentences; every figure says whether it was measured or predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from lowtide.svg import MemoryCurve
from lowtide.tools.compare.growth import SizedRun
from lowtide.tools.compare.run import Comparison, WayResult
from lowtide.tools.compare.sample import PARTS
from lowtide.tools.compare.ways import EXTRA, Way
from lowtide.units import format_bytes, format_count, format_seconds, round_up_to_mib


class Table(NamedTuple):
    """Rows of words under a header, all of the same length."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prediction:
    """The predicted memory and time of a way on the whole input."""

    peak_bytes: int
    seconds: float
    peak_is_least: bool
    """It died, and the line does not rise above the limit: it needs more than this, and how much is unknown."""
    seconds_are_least: bool


def tables(found: Comparison) -> list[Table]:
    """One table for each job that was compared."""
    jobs = list(dict.fromkeys(result.way.job for result in found.results))
    return [_table(job, found) for job in jobs]


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
        ("limit", f"{format_bytes(found.limit_bytes)} for each way alone, {enforced}"),
    ]
    if not sample.is_everything:
        rows.append(("full input", f"{format_bytes(sample.full_bytes)} of text (predicted)"))
    return rows


def remarks(found: Comparison) -> list[str]:
    """What a reader should know beside the figures."""
    lines = [*_token_remarks(found), *_sample_remarks(found)]
    ours = next((result for result in found.results if result.budget_bytes), None)
    if ours is not None and ours.budget_bytes is not None:
        lines.append(
            f"lowtide was told `--memory {round_up_to_mib(ours.budget_bytes)}`: the box charges page cache too"
        )
    if any(result.growth for result in found.results):
        lines.append("predicted: a straight line through two measured sizes, continued")
    if any((guess := _predict(result, found)) and guess.peak_is_least for result in found.results):
        lines.append("more than: it died there, so what it would have taken is not known")
    sizes = [_common_sixteenths(one, _ours_for(one, found)) for one in found.results]
    if any(0 < size < PARTS for size in sizes):
        lines.append("*: compared on the largest part of the sample that both finished")
    lines += [_left_out(way) for way in found.left_out]
    if found.kept:
        lines.append(f"kept: {found.kept}")
    return lines


def short_note(result: WayResult) -> str:
    """A note beside a way's name: `died at 53 %`; empty if it finished."""
    whole = result.whole
    if whole.ending == "finished":
        return ""
    at = "" if whole.share is None else f" at {math.floor(100 * whole.share)} %"
    return f"{whole.ending}{at}"


def curves(found: Comparison) -> list[MemoryCurve]:
    """Every way's memory on the whole sample, for a picture."""
    return [
        MemoryCurve(
            panel=one.way.job,
            name=one.way.name,
            points=one.whole.points,
            died=one.whole.ending == "died",
            note=short_note(one),
            ours=one.way.ours,
        )
        for one in found.results
    ]


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
        "ways": [_way_record(result, found) for result in found.results],
        "left_out": [
            {"way": way.key, "missing": way.missing, "extra": EXTRA} for way in found.left_out
        ],
        "kept": None if found.kept is None else str(found.kept),
    }


def _way_record(result: WayResult, found: Comparison) -> dict[str, object]:
    growth, guess = result.growth, _predict(result, found)
    return {
        "way": result.way.key,
        "name": result.way.name,
        "job": result.way.job,
        "budget_bytes": result.budget_bytes,
        "runs": [_run_record(run) for run in result.runs],
        "bytes_per_text_byte": round(growth.bytes_per_byte, 4) if growth else None,
        "predicted_peak_bytes": guess.peak_bytes if guess else None,
        "predicted_seconds": round(guess.seconds, 1) if guess else None,
        "predicted_at_least": guess.peak_is_least if guess else None,
    }


def _run_record(run: SizedRun) -> dict[str, object]:
    found = run.found
    return {
        "text_bytes": run.text_bytes,
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


def _table(job: str, found: Comparison) -> Table:
    results = [result for result in found.results if result.way.job == job]
    full = format_bytes(found.sample.full_bytes)
    ours = _ours_for(results[0], found)
    all_finished = all(result.whole.ending == "finished" for result in results)
    known = "measured" if found.sample.is_everything and all_finished else "predicted"
    return Table(
        title=job,
        header=(
            "way",
            "outcome",
            "peak",
            "time",
            "× lowtide",
            "per GiB",
            f"at {full} ({known})",
        ),
        rows=tuple(_row(result, ours, found) for result in results),
    )


def _ours_for(result: WayResult, found: Comparison) -> WayResult | None:
    """Lowtide's own result in the same job."""
    same_job = (one for one in found.results if one.way.job == result.way.job)
    return next((one for one in same_job if one.way.ours), None)


def _row(result: WayResult, ours: WayResult | None, found: Comparison) -> tuple[str, ...]:
    whole = result.whole
    return (
        result.way.name,
        whole.in_words,
        format_bytes(whole.peak_private_bytes),
        format_seconds(whole.seconds),
        _ratio(result, ours),
        _per_gib(result),
        _at_full_size(result, found),
    )


def _per_gib(result: WayResult) -> str:
    """Memory for more text. Lowtide fills its caches up to its budget, so that no line can predict it."""
    if result.way.ours:
        return "in budget"
    growth = result.growth
    return format_bytes(round(growth.bytes_per_byte * (1 << 30))) if growth else "not known"


def _ratio(result: WayResult, ours: WayResult | None) -> str:
    """Time in times of lowtide's, on the largest size both finished; `*` if not the whole sample."""
    if ours is None or (result is ours and result.whole.ending == "finished"):
        return "1" if ours else "-"
    size = _common_sixteenths(result, ours)
    if not size:
        return "-"
    times = f"{_finished_seconds(result)[size] / _finished_seconds(ours)[size]:.1f}"
    return times if size == PARTS else f"{times}*"


def _common_sixteenths(result: WayResult, ours: WayResult | None) -> int:
    """The largest size that both finished, in sixteenths; 0 if there is none."""
    if ours is None:
        return 0
    return max(_finished_seconds(result).keys() & _finished_seconds(ours).keys(), default=0)


def _finished_seconds(result: WayResult) -> dict[int, float]:
    """Seconds by sixteenths of the sample, of the runs that finished."""
    return {
        run.sixteenths: run.found.seconds for run in result.runs if run.found.ending == "finished"
    }


def _predict(result: WayResult, found: Comparison) -> _Prediction | None:
    """The line continued to the full input.

    Never more than its budget for lowtide. For a way that died, never less than the limit it died at, nor less
    time than it had.
    """
    growth, whole, full = result.growth, result.whole, found.sample.full_bytes
    peak_bytes = growth.peak_at(full) if growth else 0
    seconds = growth.seconds_at(full) if growth else 0.0
    if whole.ending == "died":
        least_bytes = max(found.limit_bytes, whole.peak_private_bytes)
        return _Prediction(
            peak_bytes=max(peak_bytes, least_bytes),
            seconds=max(seconds, whole.seconds),
            peak_is_least=peak_bytes <= least_bytes,
            seconds_are_least=seconds <= whole.seconds,
        )
    if growth is None:
        return None
    budget_bytes = peak_bytes if result.budget_bytes is None else result.budget_bytes
    return _Prediction(
        peak_bytes=min(peak_bytes, budget_bytes),
        seconds=seconds,
        peak_is_least=False,
        seconds_are_least=False,
    )


def _at_full_size(result: WayResult, found: Comparison) -> str:
    if found.sample.is_everything and result.whole.ending == "finished":
        return "as measured"
    guess = _predict(result, found)
    if guess is None:
        return "not known"
    peak, time = format_bytes(guess.peak_bytes), format_seconds(guess.seconds)
    if guess.peak_bytes == result.budget_bytes:
        peak = f"{peak} (its budget)"
    return f"{_least(peak, guess.peak_is_least)}, {_least(time, guess.seconds_are_least)}"


def _least(figure: str, is_least: bool) -> str:
    return f"more than {figure}" if is_least else figure


def _token_remarks(found: Comparison) -> list[str]:
    """Whether all ways made the same number of tokens: if not, they did not do the same work."""
    counts = {one.way.name: one.whole.tokens for one in found.results if one.whole.tokens}
    if len(counts) < 2:
        return []
    if len(set(counts.values())) == 1:
        count = format_count(next(iter(counts.values())))
        return [f"all that finished made the same {count} tokens"]
    each = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return [f"warning: they made different numbers of tokens: {each}"]


def _sample_remarks(found: Comparison) -> list[str]:
    sample, lines = found.sample, []
    if sample.cut_documents:
        times = "once" if sample.cut_documents == 1 else f"{sample.cut_documents} times"
        lines.append(f"documents too long for the sample were cut {times}, for all ways alike")
    if sample.replaced:
        lines.append(f"{sample.replaced} places that are not UTF-8 were replaced in the sample")
    return lines


def _left_out(way: Way) -> str:
    missing = " and ".join(way.missing)
    return f"left out: {way.name} needs {missing}; `pip install 'lowtide[{EXTRA}]'` brings it"
