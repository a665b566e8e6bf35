"""Speeds that were measured on this machine, remembered for the next plan: a small file in the user's cache.

    [{"machine": "RTX 4070", "recipe": "fast", "tokens_per_second": 31400.0, "shape": {"layers": 12, …}}, …]

What cannot be read is as if it were not there: a plan then assumes, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from lowtide.errors import LowtideError
from lowtide.model.shape import ModelShape
from lowtide.settings import Recipe
from lowtide.storage.decode_json import decode_json
from lowtide.storage.publish import write_atomically

_MOST_REMEMBERED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """How fast a model of some shape was trained on a machine."""

    machine: str
    recipe: Recipe
    tokens_per_second: float
    shape: ModelShape


def speeds_file(environment: Mapping[str, str]) -> Path | None:
    """Where they are remembered; None for who has no home."""
    cache = environment.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "lowtide" / "speeds.json"
    except RuntimeError:
        return None


def read_speeds(path: Path | None, machine: str) -> tuple[MeasuredSpeed, ...]:
    """What is known of a machine, the newest last."""
    return tuple(one for one in _read(path) if one.machine == machine)


def remember_speed(path: Path | None, measured: MeasuredSpeed) -> None:
    """The last figure for each machine, shape and recipe is kept; where nothing can be written, nothing is."""
    if path is None or not measured.tokens_per_second > 0:
        return
    others = [one for one in _read(path) if not _is_same(one, measured)]
    kept = [*others, measured][-_MOST_REMEMBERED:]
    with suppress(OSError, LowtideError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps([asdict(one) for one in kept], indent=1).encode())


def _is_same(one: MeasuredSpeed, other: MeasuredSpeed) -> bool:
    return (one.machine, one.recipe, one.shape) == (other.machine, other.recipe, other.shape)


def _read(path: Path | None) -> list[MeasuredSpeed]:
    if path is None:
        return []
    try:
        found = decode_json(path.read_bytes(), list[MeasuredSpeed])
    except (OSError, msgspec.MsgspecError, LowtideError):
        return []
    return [one for one in found if one.tokens_per_second > 0]
