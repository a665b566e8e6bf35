"""What a run is planned for: a card that is here, one that was named, so much memory, or the CPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import MappingProxyType

from lowtide.errors import UsageError
from lowtide.memory.budget import Budget, choose_budget
from lowtide.memory.limits import machine_limit
from lowtide.plan.cards import Card, PeakSource, find_card, match_card
from lowtide.plan.measured import MeasuredSpeed
from lowtide.settings import Device
from lowtide.units import GIB, MIB, format_bytes, parse_bytes

CONTEXT_BYTES = 6 * GIB // 10
"""CUDA's own: the driver's context and the kernels of the libraries. Assumed; 0.4 to 0.7 GiB are usual."""
LIBRARY_BYTES = 384 * MIB
"""On the CPU: Python and torch themselves. Measured: 270 to 300 MiB in runs of gpt2-pico and gpt2-nano."""
_SLACK_SHARES: Mapping[Device, float] = MappingProxyType({"cuda": 0.05, "cpu": 0.12})
"""Of the rest, what lies unused between tensors. Assumed for PyTorch's allocator; measured for glibc's."""
_FLOPS_OF_A_CORE = 50e9
"""float32, AVX2 at 3 GHz and about half of it reached. Assumed."""
_ASKED = ("uuid", "name", "memory.total", "memory.used")
_SECONDS_TO_ANSWER = 3.0
_NO_SLURM: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a run will take place."""

    name: str
    device: Device
    total_bytes: int
    taken_bytes: int
    """By others already, by CUDA or the libraries themselves."""
    peak_flops: float | None
    """None where only the memory was named."""
    peak_source: PeakSource
    bfloat16: bool
    found: str
    """How this is known, in words."""
    measured: tuple[MeasuredSpeed, ...] = ()
    """What was trained here before, and how fast."""
    has_torchao: bool = True
    """Without it, the recipe leanest does not run here."""
    ram: Budget | None = None
    """Where `total_bytes` comes from on a CPU; None for a card."""

    @property
    def slack_bytes(self) -> int:
        """Left free for what falls between."""
        return int((self.total_bytes - self.taken_bytes) * self.slack_share)

    @property
    def slack_share(self) -> float:
        """Of all memory but what is taken."""
        return _SLACK_SHARES[self.device]

    @property
    def budget_bytes(self) -> int:
        """For the tensors of a run."""
        return max(0, self.total_bytes - self.taken_bytes - self.slack_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCard:
    """What the driver says of a card that is here."""

    uuid: str
    name: str
    total_bytes: int
    used_bytes: int


def choose_machine(
    *,
    gpu: str | None = None,
    vram: str | None = None,
    slurm: Mapping[str, str] = _NO_SLURM,
    memory: str | None = None,
) -> Machine:
    """The card that was named, so much memory of one, else the first card that is here, else the CPU.

    `slurm` is the environment: SLURM's limits, and CUDA_VISIBLE_DEVICES. `memory` is the budget on a CPU.
    """
    if gpu is not None:
        card = find_card(gpu)
        return _of_card(card, parse_bytes(vram) if vram else card.memory_bytes, "as named")
    if vram is not None:
        return _of_memory(parse_bytes(vram))
    seen = visible_cards(seen_cards(), slurm.get("CUDA_VISIBLE_DEVICES"))
    if seen:
        return _of_seen(seen)
    return cpu_machine(slurm, memory)


def seen_cards() -> list[SeenCard]:
    """Every card that `nvidia-smi` lists; none where it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS_TO_ANSWER, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_seen(done.stdout)


def parse_seen(told: str) -> list[SeenCard]:
    """Lines such as `GPU-1f…, NVIDIA GeForce RTX 4070, 12282, 431`; others are passed over."""
    cards = []
    for line in told.splitlines():
        parts = [part.strip() for part in line.rsplit(",", 2)]
        uuid, _, name = parts[0].partition(",")
        if len(parts) == 3 and name and parts[1].isdigit() and parts[2].isdigit():
            total, used = int(parts[1]) * MIB, int(parts[2]) * MIB
            cards.append(SeenCard(uuid=uuid, name=name.strip(), total_bytes=total, used_bytes=used))
    return cards


def visible_cards(seen: list[SeenCard], wanted: str | None) -> list[SeenCard]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order: numbers, or beginnings of their ids.

    As CUDA does, what comes after a name that is none is not seen either.
    """
    if wanted is None:
        return seen
    cards: list[SeenCard] = []
    for name in (part.strip() for part in wanted.split(",")):
        if name.isdigit():
            found = seen[int(name) : int(name) + 1]
        else:
            found = [card for card in seen if name and card.uuid.startswith(name)]
        if len(found) != 1:
            break
        cards += found
    return cards


def _of_card(card: Card, memory_bytes: int, found: str, used_bytes: int = 0) -> Machine:
    return Machine(
        name=card.name,
        device="cuda",
        total_bytes=memory_bytes,
        taken_bytes=used_bytes + CONTEXT_BYTES,
        peak_flops=card.peak_flops,
        peak_source=card.peak_source,
        bfloat16=card.bfloat16,
        found=found,
    )


def _of_seen(seen: list[SeenCard]) -> Machine:
    first = seen[0]
    found = "found here" if len(seen) == 1 else f"found here, one of {len(seen)}"
    card = match_card(first.name, memory_bytes=first.total_bytes)
    if card is not None:
        machine = _of_card(card, first.total_bytes, found, first.used_bytes)
        return replace(machine, has_torchao=find_spec("torchao") is not None)
    return Machine(
        name=first.name,
        device="cuda",
        total_bytes=first.total_bytes,
        taken_bytes=first.used_bytes + CONTEXT_BYTES,
        peak_flops=None,
        peak_source="assumed",
        bfloat16=True,
        found=f"{found}; its speed is not in the table",
        has_torchao=find_spec("torchao") is not None,
    )


def _of_memory(memory_bytes: int) -> Machine:
    if memory_bytes <= CONTEXT_BYTES:
        raise UsageError(
            f"a card of {format_bytes(memory_bytes)} has no room beside CUDA's own "
            f"{format_bytes(CONTEXT_BYTES)}",
            remedy="pass the memory of the whole card, such as `--vram 12GiB`",
        )
    return Machine(
        name=f"a card of {format_bytes(memory_bytes)}",
        device="cuda",
        total_bytes=memory_bytes,
        taken_bytes=CONTEXT_BYTES,
        peak_flops=None,
        peak_source="assumed",
        bfloat16=True,
        found="as named",
    )


def cpu_machine(slurm: Mapping[str, str] = _NO_SLURM, memory: str | None = None) -> Machine:
    """This machine without a card, with the budget that training has there."""
    budget = choose_budget(memory, machine_limit(slurm=slurm), generous=True)
    cores = os.cpu_count() or 1
    return Machine(
        name=f"the CPU, {cores} cores",
        device="cpu",
        total_bytes=budget.total_bytes,
        taken_bytes=LIBRARY_BYTES,
        peak_flops=cores * _FLOPS_OF_A_CORE,
        peak_source="assumed",
        bfloat16=False,
        found="no GPU found here",
        has_torchao=find_spec("torchao") is not None,
        ram=budget,
    )
