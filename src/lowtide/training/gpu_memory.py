"""Who holds a GPU's memory. A desktop's browser may take what the plan had counted on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lowtide.units import MIB, format_bytes

_TAKEN_BYTES = 256 * MIB
_LEAST_SHARE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One look at a GPU, in bytes."""

    total: int
    free: int
    ours: int
    """What PyTorch has taken from it, used or in store."""

    @property
    def others(self) -> int:
        """Other processes, and CUDA's own share."""
        return self.total - self.free - self.ours


def read_gpu_use(device: torch.device) -> GpuUse:
    """Asks the driver, which takes microseconds and waits for no kernel."""
    free, total = torch.cuda.mem_get_info(device)
    return GpuUse(total=total, free=free, ours=torch.cuda.memory_reserved(device))


def peak_of_gpu(device: torch.device) -> int | None:
    """The most that tensors have taken since the process began; None for a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


class GpuWatch:
    """Compares with the first look. Tells once for every 256 MiB that others take of a card that is full."""

    def __init__(self) -> None:
        self._others: int | None = None

    def see(self, use: GpuUse) -> str | None:
        """What a person would want to know, or None."""
        if self._others is None:
            self._others = use.others
        taken = use.others - self._others
        if taken < _TAKEN_BYTES or use.free > _LEAST_SHARE * use.total:
            return None
        self._others = use.others
        return (
            f"others have taken {format_bytes(taken)} of the GPU while the run was under way, and "
            f"{format_bytes(use.free)} are left: should a step fail for it, it goes on in smaller parts"
        )
