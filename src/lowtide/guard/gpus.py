"""Memory of NVIDIA's cards, through nvidia-ml-py where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One card. What is used belongs to everybody on it."""

    index: int
    name: str
    used_bytes: int
    total_bytes: int


@contextmanager
def open_gpus() -> Iterator[tuple[Callable[[], Sequence[GpuReading]], str | None]]:
    """A function that reads every card, and why there is none to read: None where there is."""
    try:
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        yield tuple, "GPUs are not read: `pip install 'lowtide[gpu]'` brings nvidia-ml-py"
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as reason:
        yield tuple, f"no GPU is read: {reason}"
        return
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]

        def read() -> list[GpuReading]:
            try:
                return [_read(pynvml, index, handle) for index, handle in enumerate(handles)]
            except pynvml.NVMLError:  # a card that was lost on the way
                return []

        yield read, None
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: object, index: int, handle: object) -> GpuReading:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)  # type: ignore[attr-defined]
    name = nvml.nvmlDeviceGetName(handle)  # type: ignore[attr-defined]
    return GpuReading(
        index=index,
        name=name.decode() if isinstance(name, bytes) else str(name),
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
    )
