"""Which cards are here, and whether their driver answers. `nvidia-smi` is asked; torch is not."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.guard.doctor.checks import Check, advice, ok, problem
from lowtide.memory.proc_files import read_text
from lowtide.units import MIB, format_bytes

_QUESTION = "--query-gpu=driver_version,memory.total,memory.used,name"
_SECONDS_TO_ANSWER = 10.0
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_TAKEN_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGpu:
    """A card as the driver tells of it."""

    name: str
    driver: str
    total_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAnswer:
    """What was found without torch."""

    cards: tuple[SeenGpu, ...] = ()
    complaint: str | None = None
    """What `nvidia-smi` said instead of an answer."""
    asked: bool = False
    """Whether there is an `nvidia-smi`."""
    driver_loaded: bool = False
    on_the_bus: bool = False
    """An NVIDIA card sits in the machine, with or without a driver."""


def read_gpus(root: Path) -> DriverAnswer:
    """Ask the driver's own program, and look for cards that it may not know."""
    seen = DriverAnswer(
        driver_loaded=(root / "proc/driver/nvidia/version").exists(),
        on_the_bus=_sits_on_the_bus(root),
    )
    command = ["nvidia-smi", _QUESTION, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS_TO_ANSWER, check=False
        )
    except FileNotFoundError:
        return seen
    except subprocess.TimeoutExpired:
        return replace(seen, asked=True, complaint=f"it is silent for {_SECONDS_TO_ANSWER:.0f} s")
    except OSError as error:
        return replace(seen, asked=True, complaint=str(error))
    if done.returncode == 0:
        return replace(seen, asked=True, cards=tuple(parse_gpus(done.stdout)))
    said = (done.stdout + done.stderr).strip().splitlines() or [f"code {done.returncode}"]
    return replace(seen, asked=True, complaint=said[0])


def parse_gpus(told: str) -> list[SeenGpu]:
    """Lines such as `570.86, 12282, 431, NVIDIA GeForce RTX 4070`; others are passed over."""
    cards = []
    for line in told.splitlines():
        parts = [part.strip() for part in line.split(",", 3)]
        if len(parts) == 4 and parts[1].isdigit() and parts[2].isdigit():
            total, used = int(parts[1]) * MIB, int(parts[2]) * MIB
            card = SeenGpu(name=parts[3], driver=parts[0], total_bytes=total, used_bytes=used)
            cards.append(card)
    return cards


def _sits_on_the_bus(root: Path) -> bool:
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor, kind = read_text(device / "vendor") or "", read_text(device / "class") or ""
        if vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY):
            return True
    return False


def check_gpu(
    reading: DriverAnswer, environ: Mapping[str, str], *, container: str | None
) -> list[Check]:
    """A line for each card, or one that says why there is none."""
    if reading.complaint is not None:
        told = f"nvidia-smi does not answer: {reading.complaint}"
        remedy = "restart the machine, which loads the driver anew; if that fails, reinstall it"
        return [problem("GPU", told, remedy)]
    if not reading.cards:
        return [_without_card(reading, container)]
    if are_hidden(environ):
        told = f"{reading.cards[0].name} is here, but CUDA_VISIBLE_DEVICES hides it"
        return [advice("GPU", told, "`unset CUDA_VISIBLE_DEVICES`")]
    return [_judge_card(card) for card in reading.cards]


def are_hidden(environ: Mapping[str, str]) -> bool:
    """An empty CUDA_VISIBLE_DEVICES, or -1, leaves no card to CUDA."""
    return environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


def _without_card(reading: DriverAnswer, container: str | None) -> Check:
    if reading.driver_loaded and not reading.asked:
        told = "an NVIDIA driver is loaded, but there is no nvidia-smi: `plan` cannot see the card"
        remedy = "install the driver's tools (`nvidia-utils`)"
        if container:
            remedy = "start the container with `-e NVIDIA_DRIVER_CAPABILITIES=compute,utility`"
        return advice("GPU", told, remedy)
    if reading.on_the_bus:
        if container:
            told = "the host has an NVIDIA card, and the container was not given it"
            return advice("GPU", told, "start the container with `--gpus all`")
        told = "an NVIDIA card is here, and no driver that answers"
        return advice("GPU", told, "install NVIDIA's driver, then restart the machine")
    return ok("GPU", "no NVIDIA card found: training runs on the CPU, which is for small models")


def _judge_card(card: SeenGpu) -> Check:
    told = f"{card.name}, {format_bytes(card.total_bytes)}, driver {card.driver}"
    if card.used_bytes > _TAKEN_SHARE * card.total_bytes:
        taken = f"{told}; {format_bytes(card.used_bytes)} of it are taken"
        return advice("GPU", taken, "`nvidia-smi` lists who holds it; end what is not needed")
    return ok("GPU", told)
