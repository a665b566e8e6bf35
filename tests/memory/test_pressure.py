"""The verdict is a pure function of one sample and the budget."""

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
from lowtide.memory.pressure import PressureSample, Stage, floor_bytes, judge, take_sample
from lowtide.units import GIB, MIB

LIMIT = MemoryLimit(candidates=(LimitCandidate(source="available memory", total_bytes=32 * GIB),))
BUDGET = Budget(total_bytes=1000 * MIB, source="named", limit=LIMIT)
CALM = PressureSample(
    mapped_bytes=0,
    private_bytes=100 * MIB,
    swapped_bytes=0,
    available_bytes=20 * GIB,
    total_ram_bytes=32 * GIB,
    stalled_percent=0.0,
)


def stage_of(**changes: float | None) -> Stage:
    return judge(replace(CALM, **changes), BUDGET)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("used_mib", "stage"),
    [
        (0, Stage.CALM),
        (799, Stage.CALM),
        (800, Stage.NOTE),
        (849, Stage.NOTE),
        (850, Stage.GIVE_BACK),
        (969, Stage.GIVE_BACK),
        (970, Stage.STOP),
        (5000, Stage.STOP),
    ],
)
def test_private_use_is_judged_against_the_budget(used_mib: int, stage: Stage) -> None:
    assert stage_of(private_bytes=used_mib * MIB) == stage


def test_swapped_pages_count_as_used() -> None:
    assert stage_of(private_bytes=400 * MIB, swapped_bytes=580 * MIB) == Stage.STOP


@pytest.mark.parametrize(
    ("available_mib", "stage"),
    [(1536, Stage.CALM), (1535, Stage.NOTE), (1023, Stage.GIVE_BACK), (511, Stage.STOP)],
)
def test_the_machine_keeps_a_floor_of_free_memory(available_mib: int, stage: Stage) -> None:
    assert floor_bytes(32 * GIB) == 512 * MIB
    assert stage_of(available_bytes=available_mib * MIB) == stage


def test_a_small_machine_has_a_small_floor() -> None:
    assert floor_bytes(GIB) == GIB // 50


def test_a_stall_stops_only_when_memory_is_scarce_as_well() -> None:
    assert stage_of(stalled_percent=39.0) == Stage.CALM
    assert stage_of(stalled_percent=90.0) == Stage.NOTE
    assert stage_of(stalled_percent=90.0, available_bytes=1600 * MIB) == Stage.STOP
    assert stage_of(stalled_percent=None, available_bytes=1600 * MIB) == Stage.CALM


def test_the_reason_names_the_gravest_cause() -> None:
    sample = replace(CALM, private_bytes=820 * MIB, available_bytes=100 * MIB)
    stage, reason = judge(sample, BUDGET)
    assert stage == Stage.STOP
    assert reason == "only 100.0 MiB of the machine's memory are left"
    assert judge(CALM, BUDGET) == (Stage.CALM, "")
    assert judge(replace(CALM, private_bytes=980 * MIB), BUDGET)[1] == (
        "980.0 MiB of the budget of 1000.0 MiB are used"
    )


@given(st.integers(0, 1 << 32), st.integers(0, 1 << 32))
def test_more_use_is_never_judged_milder(one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert stage_of(private_bytes=less) <= stage_of(private_bytes=more)
    assert stage_of(available_bytes=more) <= stage_of(available_bytes=less)


def test_a_sample_reads_the_machine_it_is_shown(tmp_path: Path) -> None:
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 2048 kB\nMemAvailable: 1024 kB\n")
    (tmp_path / "proc/pressure/memory").write_text(
        "some avg10=50.00 avg60=1.00 avg300=0.10 total=9\n"
        "full avg10=12.50 avg60=0.90 avg300=0.00 total=7\n"
    )
    sample = take_sample(root=tmp_path)
    assert sample.available_bytes == 1 * MIB
    assert sample.total_ram_bytes == 2 * MIB
    assert sample.stalled_percent == 12.5
    assert sample.private_bytes > MIB


def test_a_machine_without_these_files_is_sampled_too(tmp_path: Path) -> None:
    sample = take_sample(root=tmp_path)
    assert sample.stalled_percent is None
    assert 0 < sample.available_bytes <= sample.total_ram_bytes


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
        with_it, without = take_sample(), take_sample(without=others)
        child.kill()
    assert with_it.private_bytes - without.private_bytes > 60 * MIB
