"""The documents of a text, one at a time, for the trainers that want an iterator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SEPARATOR = "<|endoftext|>"


def documents(text: str) -> Iterator[str]:
    rest = ""
    with Path(text).open(encoding="utf-8", newline="") as file:
        while block := file.read(1 << 20):
            *whole, rest = (rest + block).split(SEPARATOR)
            yield from whole
    yield rest
