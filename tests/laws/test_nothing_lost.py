"""A crash loses nothing: killed, stopped, failed or out of disk, the same command ends in the same bytes.

Small versions of the campaigns in `bench/nothing_lost.py`, `bench/faults.py` and `bench/power_cut.py`.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

import lowtide
from bench.faults import Fault, Scene, check_ending, find_faults, find_strace, run_with
from bench.jobs import (
    SEPARATOR,
    Job,
    check_nothing_half_written,
    check_whole,
    check_words,
    finish,
    make_jobs,
    published,
)
from bench.nothing_lost import SHARD_TOKENS, Campaign
from bench.power_cut import fill_disk, mounted_tmpfs
from lowtide import TokenizeSettings
from lowtide.errors import StoppedError
from lowtide.events import Checkpointed, Event
from lowtide.settings import Format
from lowtide.shards.layout import FORMATS
from lowtide.stages import folder as out_folder

TINY_SHARDS = 50_000


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """Six megabytes for each job: two or three shards, a checkpoint at every half of one."""
    folder = tmp_path_factory.mktemp("jobs")
    made = make_jobs(folder, text_bytes=6_000_000, shard_tokens=SHARD_TOKENS)
    return {job.name: job for job in made}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A quarter of a megabyte, in three shards and some; and the folder it should become."""
    folder = tmp_path_factory.mktemp("tiny")
    job = make_jobs(folder / "inputs", text_bytes=250_000, shard_tokens=TINY_SHARDS)[0]
    finish(job, folder / "undisturbed")
    return Scene(name="tiny", job=job, folder=folder, reference=folder / "undisturbed")


def stop_after_first_block(job: Job, out: Path) -> None:
    out.mkdir()
    (out / ".stop").touch()
    stopped = subprocess.run(job.command(out, "--workers", "1"), capture_output=True, text=True)
    assert stopped.returncode == 75, stopped.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kills", "terms"), [("npy", 3, 1), ("megatron", 3, 1)])
def test_a_run_killed_at_any_moment_goes_on_to_the_same_bytes(
    tmp_path: Path, jobs: dict[str, Job], name: str, kills: int, terms: int
) -> None:
    campaign = Campaign(job=jobs[name], folder=tmp_path, random=random.Random(name))
    campaign.run_undisturbed()
    for number, wanted in ((signal.SIGKILL, kills), (signal.SIGTERM, terms)):
        for _ in range(3 * wanted):  # a run may be faster than its end
            wanted -= campaign.disturb(number, wanted)
            if not wanted:
                break
    assert campaign.most_repeated < SHARD_TOKENS
    assert campaign.outcomes["SIGKILL exit -9"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("format", ["npy", "megatron"])
def test_a_run_stopped_after_every_block_comes_to_the_same_bytes(
    tmp_path: Path, jobs: dict[str, Job], format: Format
) -> None:
    """Documents of two blocks and more, on both sides: every stop but a few falls inside of one."""
    text = Path(jobs["nanogpt"].arguments[0]).read_text(encoding="utf-8")
    documents = [text[start : start + 1_500_000] for start in range(0, 6_000_000, 1_500_000)]
    long = tmp_path / "long.txt"
    long.write_text(SEPARATOR.join(documents), encoding="utf-8", newline="")
    settings = TokenizeSettings(format=format, separator=SEPARATOR, val=0.5)
    whole = lowtide.tokenize([long], tmp_path / "whole", settings)
    assert all(split.tokens for split in whole.manifest.splits.values())
    stops = 0
    while not (tmp_path / "out" / "lowtide.json").exists():
        try:
            lowtide.tokenize([long], tmp_path / "out", settings, should_stop=lambda: "terminated")
        except StoppedError:
            stops += 1
    assert stops > 4
    check_whole(tmp_path / "out", tmp_path / "whole", f"after {stops} stops")


@pytest.mark.parametrize("format", FORMATS)
def test_no_more_than_a_shard_of_work_is_ever_at_risk(
    tmp_path: Path, jobs: dict[str, Job], format: Format
) -> None:
    stored = [0]

    def listen(event: Event) -> None:
        if isinstance(event, Checkpointed):
            stored.append(event.tokens)

    text = Path(jobs["nanogpt"].arguments[0])
    settings = TokenizeSettings(format=format, shard_tokens=SHARD_TOKENS, val=0.0)
    result = lowtide.tokenize([text], tmp_path / "out", settings, listen=listen)
    stored.append(result.manifest.tokens)
    assert max(after - before for before, after in itertools.pairwise(stored)) < SHARD_TOKENS
    assert len(stored) > 4


@pytest.mark.slow
def test_a_kill_between_checkpoint_and_name_leaves_a_shard_that_gets_its_name(
    tmp_path: Path, tiny: Scene
) -> None:
    out = tmp_path / "out"
    stop_after_first_block(tiny.job, out)
    named = [name for name in published(out) if name.startswith("train_")]
    assert named
    for name in named:
        (out / name).rename(out / ".lowtide" / f"{name}.partial")
    finish(tiny.job, out)
    check_whole(out, tiny.reference, "afterwards")


def test_what_a_killed_run_was_writing_is_cleared_away(tmp_path: Path, tiny: Scene) -> None:
    out = tmp_path / "out"
    stop_after_first_block(tiny.job, out)
    (out / ".lowtide.json.4711.tmp").write_text("{")
    (out / ".lowtide" / ".progress.json.4711.tmp").write_text("{")
    finish(tiny.job, out)
    check_whole(out, tiny.reference, "afterwards")


def test_a_run_that_is_refused_leaves_alone_what_another_is_writing(
    tmp_path: Path, tiny: Scene
) -> None:
    out = tmp_path / "out"
    stop_after_first_block(tiny.job, out)
    written = out / ".lowtide" / ".progress.json.4711.tmp"
    written.write_text("{")
    with out_folder.hold_lock(out):
        refused = subprocess.run(tiny.job.command(out), capture_output=True, text=True)
    assert refused.returncode == 2
    assert written.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("finished", "restart"), [(True, ("--restart",)), (False, ())])
def test_after_a_restart_that_was_cut_off_any_run_begins_again(
    tmp_path: Path, tiny: Scene, finished: bool, restart: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    if finished:
        finish(tiny.job, out)
    else:
        stop_after_first_block(tiny.job, out)
    (out / "train_000000.npy").unlink()
    (out / "train_000000.npy").mkdir()  # cannot be removed like a file
    failed = subprocess.run(tiny.job.command(out, "--restart"), capture_output=True, text=True)
    check_words(failed.returncode, failed.stderr, "restart")
    (out / "train_000000.npy").rmdir()
    finish(tiny.job, out, *restart)
    check_whole(out, tiny.reference, "afterwards")


@pytest.mark.parametrize("name", ["job.json", "progress.json"])
def test_a_damaged_checkpoint_does_not_stand_in_the_way_of_a_restart(
    tmp_path: Path, tiny: Scene, name: str
) -> None:
    out = tmp_path / "out"
    stop_after_first_block(tiny.job, out)
    (out / ".lowtide" / name).write_text("{")
    damaged = subprocess.run(tiny.job.command(out), capture_output=True, text=True)
    assert damaged.returncode == 4
    assert "--restart" in damaged.stderr
    finish(tiny.job, out, "--restart")
    check_whole(out, tiny.reference, "afterwards")


@pytest.fixture(scope="module")
def faults(tiny: Scene) -> list[Fault]:
    if find_strace() is None:
        pytest.skip("strace is not installed, and only it can fail a system call")
    try:
        subprocess.run(["strace", "-o", os.devnull, "true"], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"strace may not trace here: {error.stderr.decode().strip()}")
    return find_faults(tiny)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "call", "where"),
    [
        ("ENOSPC", "write", ".partial>"),
        ("EIO", "fsync", "train_000000.npy.partial>"),
        ("EIO", "close", "train_000000.npy.partial>"),
        ("EIO", "fsync", "(4<OUT>"),
        ("SIGKILL", "rename", '"OUT/train_000000.npy"'),
        ("SIGKILL", "rename", '"OUT/lowtide.json"'),
    ],
)
def test_a_failing_disk_is_told_and_the_next_run_goes_on(
    tmp_path: Path, tiny: Scene, faults: list[Fault], way: str, call: str, where: str
) -> None:
    fault = next(fault for fault in faults if fault.call == call and where in fault.text)
    out = tmp_path / "out"
    ended = run_with(tiny, fault, way, out)
    check_nothing_half_written(out, tiny.reference, fault.text)
    if way != "SIGKILL":
        check_ending(ended, out, tiny, fault.text)
    finish(tiny.job, out)
    check_whole(out, tiny.reference, fault.text)


def test_a_new_folder_is_synced_into_the_one_above_it(tiny: Scene, faults: list[Fault]) -> None:
    above = f"<{tiny.folder}>"
    assert any(fault.call == "fsync" and above in fault.text for fault in faults)


def test_a_full_disk_is_told_and_room_lets_the_run_go_on(
    tmp_path: Path, jobs: dict[str, Job], needs_small_disks: None
) -> None:
    reference = tmp_path / "undisturbed"
    finish(jobs["npy"], reference)
    assert fill_disk(jobs["npy"], reference, tmp_path / "small", (2, 64)) == 1


@pytest.fixture
def needs_small_disks(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    try:
        with mounted_tmpfs(tmp_path_factory.mktemp("mount"), megabytes=1):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
