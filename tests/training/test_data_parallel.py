"""Several ranks are one run: the same order, the same losses, and their number may change at any stop."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lowtide.errors import StoppedError, UsageError
from lowtide.stages.train import train
from lowtide.training import data_parallel as room
from lowtide.training.checkpoint import find_checkpoints
from lowtide.training.data_parallel import Ranks, add_up_gradients, ranks_of
from tests.commands import Outcome
from tests.model.small import gradients, lively
from tests.training.small_runs import (
    SHAPE,
    Command,
    Heard,
    losses_told,
    make_settings,
    make_tokens,
    run_heard,
    spawner,
    told_of,
    write_plan,
)

CLOSE = {"rel": 1e-5}
"""Two ranks add the same numbers in another order."""


class Scene:
    """A run and the losses that it has on one rank."""

    def __init__(self, folder: Path, **changed: object) -> None:
        self.data = make_tokens(folder / "tokens")
        self.settings = make_settings(self.data, **changed)
        self.plan = write_plan(folder / "plan.toml", self.settings)
        run_heard(folder / "alone", self.settings)
        self.losses = losses_told(folder / "alone")
        self.evaluations = told_of(folder / "alone", "evaluation")

    def arguments(self, run: Path) -> list[str]:
        return ["train", str(self.data), "--plan", str(self.plan), "--out", str(run), "--quiet"]

    def start(self, run: Path, ranks: int) -> list[Command]:
        """What torchrun does, in processes that start at once."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
        return [
            Command(
                run.with_name(f"said-{rank}"),
                *self.arguments(run),
                environment={**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(ranks)
        ]


def ends(commands: list[Command]) -> list[Outcome]:
    return [command.end() for command in commands]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("ranks"), steps=30, checkpoint_every=10)


def test_who_one_is_comes_from_torchrun_or_from_nobody() -> None:
    assert ranks_of({}) == Ranks(rank=0, world_size=1, local_rank=0)
    told = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost"}
    assert ranks_of(told) == Ranks(rank=5, world_size=8, local_rank=1)
    assert ranks_of({**told, "LOCAL_WORLD_SIZE": "4"}).local_world_size == 4
    assert not ranks_of(told).leads


@pytest.mark.parametrize(
    "told",
    [
        {"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"},
        {"RANK": "0", "WORLD_SIZE": "0", "MASTER_ADDR": "localhost"},
        {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "0"},
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(told: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="do not say who") as refused:
        ranks_of(told)
    assert "torchrun" in refused.value.remedy


@pytest.mark.slow
def test_the_number_of_ranks_may_change_at_any_stop(scene: Scene, tmp_path: Path) -> None:
    """One rank, then two, stopped by a file that either may find, then one: the losses of one rank."""
    run, steps = tmp_path / "run", Heard()
    with pytest.raises(StoppedError, match="after step 8 of 30"):
        train(
            run,
            scene.settings,
            listen=steps,
            should_stop=lambda: "terminated" if len(steps.losses) >= 8 else None,
        )
    two = scene.start(run, 2)
    two[0].wait_for_step(run, 14)
    (run / ".stop").touch()
    stopped = ends(two)
    assert [one.code for one in stopped] == [75, 75], stopped
    reached = len(losses_told(run))
    assert 14 <= reached < 30
    assert find_checkpoints(run)[-1].name == f"step-{reached:08d}"
    run_heard(run, scene.settings)
    assert losses_told(run) == pytest.approx(scene.losses, **CLOSE)
    found = [record["loss"] for record in told_of(run, "evaluation")]
    assert found == pytest.approx([record["loss"] for record in scene.evaluations], **CLOSE)


@pytest.mark.slow
def test_torchrun_with_two_ranks_has_the_losses_of_one(scene: Scene, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, "-m", "lowtide", *scene.arguments(run)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert losses_told(run) == pytest.approx(scene.losses, **CLOSE)
    assert done.stdout.count("\ntime ") == 1  # one rank speaks


def test_windows_that_ranks_cannot_share_are_refused_and_the_advice_works(
    scene: Scene, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as refused:
        train(tmp_path / "run", scene.settings, ranks=Ranks(rank=0, world_size=3))
    assert "8 windows cannot be shared by 3 ranks" in refused.value.problem
    assert f"`--batch-tokens {9 * SHAPE.context}`" in refused.value.remedy
    assert not (tmp_path / "run").exists()


def _sum_of_two(rank: int, meeting: Path) -> None:
    """One of two ranks, with gradients that differ by rank, in small buckets."""
    room._BUCKET_ELEMENTS = 100
    model = lively(SHAPE)
    for one in model.parameters():
        one.grad = torch.full_like(one, 1.0 + rank) * torch.arange(one.numel()).view_as(one)
    dist.init_process_group("gloo", store=dist.FileStore(str(meeting), 2), rank=rank, world_size=2)
    add_up_gradients(model.parameters())
    wanted = [3.0 * torch.arange(one.numel()).view_as(one) for one in model.parameters()]
    found = gradients(model).values()
    assert all(torch.equal(one, sum_) for one, sum_ in zip(found, wanted, strict=True))
    dist.destroy_process_group()


def test_buckets_hold_every_gradient_once(tmp_path: Path) -> None:
    ranks = [spawner.Process(target=_sum_of_two, args=(rank, tmp_path / "m")) for rank in (0, 1)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(300)
    assert [one.exitcode for one in ranks] == [0, 0]
