"""GPUs are read where the library and the driver are there, and their absence is told in words."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from lowtide.guard.reading import open_gpus
from lowtide.memory.reading import GpuReading


class DriverError(Exception):
    """What NVIDIA's library raises."""


def library(*, fails: bool = False) -> SimpleNamespace:
    """NVIDIA's library as far as it is called; a machine without its driver fails at once."""
    calls: list[str] = []

    def start() -> None:
        calls.append("init")
        if fails:
            raise DriverError("Driver Not Loaded")

    return SimpleNamespace(
        calls=calls,
        NVMLError=DriverError,
        nvmlInit=start,
        nvmlShutdown=lambda: calls.append("shutdown"),
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=handle + 5, total=100),
        nvmlDeviceGetName=lambda handle: b"RTX" if handle else "H200",
    )


def test_every_card_is_read_and_the_library_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    known = library()
    monkeypatch.setitem(sys.modules, "pynvml", known)  # type: ignore[arg-type]
    with open_gpus() as (read, why):
        assert why is None
        assert read() == [
            GpuReading(index=0, name="H200", used_bytes=5, total_bytes=100),
            GpuReading(index=1, name="RTX", used_bytes=6, total_bytes=100),
        ]
    assert known.calls == ["init", "shutdown"]


def test_without_driver_or_library_nothing_is_read_and_why_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(fails=True))  # type: ignore[arg-type]
    with open_gpus() as (read, why):
        assert (tuple(read()), why) == ((), "no GPU is read: Driver Not Loaded")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    with open_gpus() as (read, why):
        assert tuple(read()) == ()
        assert why is not None
        assert "lowtide[gpu]" in why
