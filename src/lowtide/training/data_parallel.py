"""Several ranks with one model: each has its rows of every step, and gradients are added up.

`torchrun --nproc-per-node=2 -m lowtide train …` starts the ranks. The order of windows is the same for any
number of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lowtide.errors import UsageError

_BUCKET_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Who one is, among how many."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    """How many of them are on this machine."""

    @property
    def leads(self) -> bool:
        """The one who writes and speaks."""
        return self.rank == 0


def ranks_of(environment: Mapping[str, str]) -> Ranks:
    """What torchrun says; one rank alone where it says nothing."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return Ranks()
    names = {"RANK": "rank", "WORLD_SIZE": "world_size", "LOCAL_RANK": "local_rank",
             "LOCAL_WORLD_SIZE": "local_world_size"}  # fmt: skip
    told = {names[name]: environment[name] for name in names if name in environment}
    try:
        found = Ranks(**{name: int(value) for name, value in told.items()})
        sound = 0 <= found.rank < found.world_size and found.local_world_size > 0
    except ValueError:
        sound = False
    if not sound or (found.world_size > 1 and "MASTER_ADDR" not in environment):
        raise UsageError(
            "RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR do not say who this process is among how many",
            remedy="start it with `torchrun --nproc-per-node=N -m lowtide train …`, or unset them",
        )
    return found


@contextmanager
def joined(ranks: Ranks, device: str) -> Iterator[None]:
    """The ranks can speak to each other inside; one alone needs nobody."""
    if ranks.world_size == 1:
        yield
        return
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def add_up(value: Tensor) -> Tensor:
    """The sum over all ranks, on every rank."""
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(value)
    return value


def add_up_gradients(parameters: Iterator[nn.Parameter]) -> None:
    """In buckets of 64 MiB: few messages, little memory."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    bucket: list[Tensor] = []
    held = 0
    for parameter in parameters:
        if parameter.grad is None:
            continue
        bucket.append(parameter.grad)
        held += parameter.grad.numel()
        if held >= _BUCKET_ELEMENTS:
            _reduce(bucket)
            bucket, held = [], 0
    _reduce(bucket)


def share_from_leader(parameters: Iterator[nn.Parameter]) -> None:
    """Every rank has the first one's numbers afterwards."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    for parameter in parameters:
        dist.broadcast(parameter.data, src=0)


def wait_for_all() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def _reduce(gradients: list[Tensor]) -> None:
    if not gradients:
        return
    flat = torch.cat([one.flatten() for one in gradients])
    dist.all_reduce(flat)
    at = 0
    for one in gradients:
        one.copy_(flat[at : at + one.numel()].view_as(one))
        at += one.numel()
