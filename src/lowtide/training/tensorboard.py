"""TensorBoard event files, written by hand, and the same two calls for Weights & Biases.

    file   = record record …
    record = length (8 bytes) | masked crc32c of these | data | masked crc32c of data
    data   = a protobuf `Event`: time, step, and scalars or a text

Only the dozen fields that a run needs are known here, so nothing has to be installed.
"""

from __future__ import annotations

import html
import importlib
import math
import re
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from lowtide.errors import UsageError
from lowtide.storage.publish import storage_errors, sync_file

_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\.")
_VERSION = b"brain.Event:2"
_SESSION_STARTS = 1
_STRING_TYPE = 7
_LARGEST_FLOAT32 = 3.4028234663852886e38


class Board(Protocol):
    """Where the curves of a run are drawn."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One point on each curve."""

    def text(self, step: int, tag: str, text: str) -> None:
        """A sample, or anything else to read."""

    def close(self) -> None:
        """Everything given is there afterwards."""


class EventFile:
    """A new event file in a run's folder. Each call leaves whole records behind; holds nothing.

    A resumed run passes the step it goes on after as `after_step`: TensorBoard then hides the points that
    an earlier file has beyond it.
    """

    def __init__(
        self, folder: Path, *, after_step: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self.path = folder / f"events.out.tfevents.{_next_second(folder, clock()):010d}.lowtide"
        with storage_errors(self.path):
            self._file: BinaryIO = self.path.open("xb", buffering=0)
        self._write(0, _field(3, _VERSION))
        if after_step:
            self._write(after_step + 1, _field(7, _number(1, _SESSION_STARTS)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One point on each curve, as a float32."""
        summary = b"".join(
            _field(1, _field(1, tag.encode()) + b"\x15" + _float32(value))
            for tag, value in values.items()
        )
        self._write(step, _field(5, summary))

    def text(self, step: int, tag: str, text: str) -> None:
        """A text under TensorBoard's TEXT tab."""
        said = text.encode("utf-8", "backslashreplace")
        shape = _field(2, _number(1, 1))  # one dimension, of one string
        tensor = _number(1, _STRING_TYPE) + _field(2, shape) + _field(8, said)
        plugin = _field(9, _field(1, _field(1, b"text")))
        self._write(
            step, _field(5, _field(1, _field(1, tag.encode()) + _field(8, tensor) + plugin))
        )

    def close(self) -> None:
        """All is on the disk afterwards. May be called twice."""
        if self._file.closed:
            return
        with storage_errors(self.path):
            try:
                sync_file(self._file.fileno())
            finally:
                self._file.close()

    def _write(self, step: int, content: bytes) -> None:
        when = b"\x09" + struct.pack("<d", self._clock())
        rest = memoryview(frame(when + _number(2, step) + content))
        with storage_errors(self.path):
            while rest:  # a nearly full disk may take only a part
                rest = rest[self._file.write(rest) :]


class _WandbBoard:
    """A run of Weights & Biases behind the same two calls."""

    def __init__(self, wandb: Any, run: Any) -> None:
        self._wandb, self._run = wandb, run

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def text(self, step: int, tag: str, text: str) -> None:
        shown = self._wandb.Html(f"<pre>{html.escape(text)}</pre>")
        self._run.log({tag: shown}, step=step)

    def close(self) -> None:
        self._run.finish()


def open_wandb(project: str, settings: Mapping[str, object], *, run_id: str | None = None) -> Board:
    """A run in a project of Weights & Biases; the run named `run_id` goes on where it exists.

    Called only when someone asks for it: nothing is sent anywhere otherwise.
    """
    try:
        wandb = importlib.import_module("wandb")
    except ModuleNotFoundError as cause:
        raise UsageError(
            "Weights & Biases was asked for but is not installed",
            remedy="run `pip install 'lowtide[wandb]'`, or leave it out: TensorBoard files and "
            "log.jsonl are written anyway",
        ) from cause
    run = wandb.init(project=project, config=dict(settings), id=run_id, resume="allow")
    return _WandbBoard(wandb, run)


def frame(data: bytes) -> bytes:
    """One TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum, a byte at a time: about 10 MB/s, and a step writes 300 bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    rest = 0xFFFFFFFF
    for byte in data:
        rest = _TABLE[(rest ^ byte) & 0xFF] ^ (rest >> 8)
    return rest ^ 0xFFFFFFFF


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_crc_of_byte, range(256)))


def _masked(data: bytes) -> bytes:
    """Turned and moved, as the format wants it: a checksum of checksums would be weak."""
    plain = crc32c(data)
    turned = (plain >> 15 | plain << 17) & 0xFFFFFFFF
    return struct.pack("<I", (turned + 0xA282EAD8) & 0xFFFFFFFF)


def _next_second(folder: Path, now: float) -> int:
    """Later than every file there: TensorBoard reads files by name, and clocks are set back."""
    with storage_errors(folder):
        found = [_NAME.match(entry.name) for entry in folder.iterdir()]
    return max([int(now), *(int(match.group(1)) + 1 for match in found if match)])


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _float32(value: float) -> bytes:
    if math.isfinite(value) and abs(value) > _LARGEST_FLOAT32:
        value = math.copysign(math.inf, value)
    return struct.pack("<f", value)
