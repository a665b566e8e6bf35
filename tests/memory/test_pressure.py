"""Stages follow from a reading and the thresholds alone, and each is reported once."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.memory.budget import Budget
from lowtide.memory.limits import LimitCandidate, MemoryLimit
from lowtide.memory.meter import child_pids
from lowtide.memory.pressure import (
    Pace,
    Stage,
    Steps,
    Thresholds,
    budget_thresholds,
    floor_bytes,
    judge,
)
from lowtide.memory.proc_files import machine_memory, stalled_percent
from lowtide.memory.reading import MemoryRead, Reading
from lowtide.stages.guard_memory import MemoryGuard
from lowtide.units import GIB, MIB

LIMIT = MemoryLimit(candidates=(LimitCandidate(source="available memory", total_bytes=32 * GIB),))
BUDGET = budget_thresholds(1000 * MIB, 32 * GIB)
CALM = MemoryRead(private_bytes=100 * MIB, available_bytes=20 * GIB, stalled_percent=0.0)
IDLE = Reading(at=0.0, private_bytes=0, process_count=1, available_bytes=100 * GIB)
LINES = Thresholds(limit_bytes=10 * GIB, floor_bytes=2 * GIB, most=Stage.END)


def stage_of(**changes: float | None) -> Stage:
    return judge(replace(CALM, **changes), BUDGET)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("used_mib", "stage"),
    [
        (0, Stage.CALM),
        (799, Stage.CALM),
        (800, Stage.NOTE),
        (849, Stage.NOTE),
        (850, Stage.ASK),
        (969, Stage.ASK),
        (970, Stage.END),
        (5000, Stage.END),
    ],
)
def test_private_use_is_judged_against_the_budget(used_mib: int, stage: Stage) -> None:
    assert stage_of(private_bytes=used_mib * MIB) == stage


def test_swapped_pages_count_as_used() -> None:
    assert stage_of(private_bytes=400 * MIB, swapped_bytes=580 * MIB) == Stage.END


@pytest.mark.parametrize(
    ("available_mib", "stage"),
    [(1536, Stage.CALM), (1535, Stage.NOTE), (1023, Stage.ASK), (511, Stage.END)],
)
def test_the_machine_keeps_a_floor_of_free_memory(available_mib: int, stage: Stage) -> None:
    assert floor_bytes(32 * GIB) == 512 * MIB
    assert stage_of(available_bytes=available_mib * MIB) == stage


def test_a_small_machine_has_a_small_floor() -> None:
    assert floor_bytes(GIB) == GIB // 50


def test_a_stall_stops_only_when_memory_is_scarce_as_well() -> None:
    assert stage_of(stalled_percent=39.0) == Stage.CALM
    assert stage_of(stalled_percent=90.0) == Stage.NOTE
    assert stage_of(stalled_percent=90.0, available_bytes=1600 * MIB) == Stage.END
    assert stage_of(stalled_percent=None, available_bytes=1600 * MIB) == Stage.CALM


def test_the_reason_is_that_of_the_gravest_cause() -> None:
    stage, reason = judge(replace(CALM, private_bytes=820 * MIB, available_bytes=MIB), BUDGET)
    assert stage == Stage.END
    assert "1.0 MiB left" in reason
    assert judge(CALM, BUDGET) == (Stage.CALM, "")
    assert "980.0 MiB" in judge(replace(CALM, private_bytes=980 * MIB), BUDGET)[1]


@given(st.integers(0, 1 << 32), st.integers(0, 1 << 32))
def test_more_use_is_never_judged_milder(one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert stage_of(private_bytes=less) <= stage_of(private_bytes=more)
    assert stage_of(available_bytes=more) <= stage_of(available_bytes=less)


def test_the_machine_is_read_from_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2048 kB\nMemAvailable: 1024 kB\n")
    (tmp_path / "proc/pressure/memory").write_text(
        "some avg10=50.00 avg60=1.00 avg300=0.10 total=9\n"
        "full avg10=12.50 avg60=0.90 avg300=0.00 total=7\n"
    )
    assert machine_memory(tmp_path) == (1 * MIB, 2 * MIB)
    assert stalled_percent(tmp_path) == 12.5


def test_a_machine_without_these_files_is_read_too(tmp_path: Path) -> None:
    assert stalled_percent(tmp_path) is None
    available, installed = machine_memory(tmp_path)
    assert 0 < available <= installed


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_to_leave_out_are_not_counted() -> None:
    code = "held = bytearray(b'x') * (64 << 20); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        others = child_pids(os.getpid())
        assert child.pid in others
        budget = Budget(total_bytes=GIB, source="named", limit=LIMIT)
        reads: list[object] = []
        MemoryGuard(budget, reads.append).look()
        MemoryGuard(budget, reads.append, foreign_pids=others).look()
        child.kill()
    with_it, without = (one for one in reads if isinstance(one, MemoryRead))
    assert with_it.private_bytes - without.private_bytes > 60 * MIB


@pytest.mark.parametrize(
    ("changed", "stage"),
    [
        ({"private_bytes": 7 * GIB}, Stage.CALM),
        ({"private_bytes": 8 * GIB}, Stage.NOTE),
        ({"private_bytes": 9 * GIB}, Stage.ASK),
        ({"private_bytes": 10 * GIB}, Stage.END),
        ({"private_bytes": 5 * GIB, "swapped_bytes": 4 * GIB}, Stage.ASK),
        ({"mapped_bytes": 90 * GIB}, Stage.CALM),
        ({"available_bytes": 3 * GIB - 1}, Stage.NOTE),
        ({"available_bytes": 2 * GIB - 1, "private_bytes": 1}, Stage.ASK),
        ({"available_bytes": GIB - 1, "private_bytes": 2 * GIB}, Stage.END),
        (
            {"available_bytes": GIB - 1, "private_bytes": GIB // 2},
            Stage.NOTE,
        ),  # it is not the culprit
        ({"available_bytes": GIB - 1, "private_bytes": 8 * GIB}, Stage.END),
    ],
)
def test_use_and_room_are_judged_and_page_cache_is_not(
    changed: dict[str, int], stage: Stage
) -> None:
    reading = replace(IDLE, **changed)  # type: ignore[arg-type]
    found, reason = judge(reading, LINES)
    assert found is stage
    assert bool(reason) == (stage is not Stage.CALM)


@pytest.mark.parametrize("most", [Stage.NOTE, Stage.ASK, Stage.END])
def test_no_stage_goes_further_than_the_user_allows(most: Stage) -> None:
    reading = replace(IDLE, private_bytes=20 * GIB)
    assert judge(reading, replace(LINES, most=most))[0] is most


def test_a_job_that_hovers_around_a_line_is_told_once() -> None:
    steps = Steps(LINES)
    told = [
        steps.see(replace(IDLE, private_bytes=8 * GIB + 50 * MIB * (-1) ** number))
        for number in range(100)
    ]
    assert [alert.stage for alert in told if alert] == [Stage.NOTE]


@pytest.mark.parametrize("most", [Stage.NOTE, Stage.ASK])
def test_past_its_limit_a_job_that_may_go_on_is_told_of_at_each_doubling(most: Stage) -> None:
    steps = Steps(replace(LINES, most=most))
    sizes = [9, 9.9, 10, 15, 19, 20, 21, 39, 100, 90, 70, 81, 9.6, 10, 7, 10]
    told = []
    for size in sizes:
        reading = replace(IDLE, private_bytes=round(size * GIB))
        would_rise = steps.would_rise(reading)
        told.append(steps.see(reading))
        assert would_rise == (told[-1] is not None)
    heard = [size for size, alert in zip(sizes, told, strict=True) if alert]
    assert heard == [9, 10, 20, 100, 81, 10]  # 9.6 is near enough to be the same time at 10
    assert {alert.stage for alert in told if alert} == {most}


def test_after_it_was_calm_it_is_told_again() -> None:
    steps = Steps(LINES)
    sizes = [8 * GIB, 7 * GIB, 8 * GIB, 9 * GIB, 8 * GIB, 9 * GIB]
    told = [steps.see(replace(IDLE, private_bytes=size)) for size in sizes]
    stages = [alert.stage if alert else None for alert in told]
    assert stages == [Stage.NOTE, None, Stage.NOTE, Stage.ASK, None, Stage.ASK]


@given(rate=st.floats(2e8, 2e9), usual=st.floats(0.2, 5.0))
def test_no_line_is_passed_by_more_than_a_fifth_of_a_second(rate: float, usual: float) -> None:
    pace, at, late = Pace(LINES, usual), 0.0, []
    line = 0.9 * 10 * GIB
    while rate * at < line:
        reading = replace(IDLE, at=at, private_bytes=int(rate * at))
        at += pace.wait_seconds(reading)
        late.append(rate * at - line)
    assert late[-1] <= max(0.2 * rate, rate * usual if len(late) < 3 else 0)
