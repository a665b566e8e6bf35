"""Documents that a tokenizer does not learn from, and a few MiB of them kept to measure it on.

The same hash decides as in `tokenize`: with the same `--val`, validation text there was never seen here.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from lowtide.source.hold_out import held_out_documents
from lowtide.source.stream import Block
from lowtide.storage.publish import storage_errors, sync_file
from lowtide.units import MIB

MOST_KEPT_BYTES = 16 * MIB
HELD_OUT_NAME = "held_out.text"


class HeldOutText:
    """Takes held-out documents out of blocks, and keeps the first of them in a file in the work folder."""

    def __init__(
        self, work: Path, *, fraction: float, delimiter: bytes, is_open: bool, kept_bytes: int
    ) -> None:
        self.is_open = is_open
        """Whether the document that the last block left unfinished is held out."""
        self._path = work / HELD_OUT_NAME
        self._fraction = fraction
        self._delimiter = delimiter
        self._kept_bytes = kept_bytes
        self._file: BinaryIO | None = None

    def leave_out(self, block: Block, *, continues: bool) -> bytes:
        """The block's text without held-out documents."""
        if not self._fraction:
            return block.text
        flags = held_out_documents(block.text, delimiter=self._delimiter, fraction=self._fraction)
        if continues:
            flags[0] = self.is_open
        self.is_open = bool(flags[-1])
        if not flags.any():
            return block.text
        pieces = block.text.split(self._delimiter)
        last = len(pieces) - 1  # not finished: the delimiter is still to come
        self._keep(
            [
                pieces[index] + (self._delimiter if index < last else b"")
                for index in np.flatnonzero(flags)
            ]
        )
        return self._delimiter.join(pieces[index] for index in np.flatnonzero(~flags))

    def sync(self) -> int:
        """Sync the file; its size in bytes."""
        if self._file is not None:
            with storage_errors(self._path):
                self._file.flush()
                sync_file(self._file.fileno())
        return self._kept_bytes

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, pieces: list[bytes]) -> None:
        if self._kept_bytes >= MOST_KEPT_BYTES:
            return
        with storage_errors(self._path):
            if self._file is None:
                self._file = self._path.open("r+b" if self._path.exists() else "w+b")
                self._file.truncate(self._kept_bytes)  # what came after the checkpoint goes
                self._file.seek(self._kept_bytes)
            for piece in pieces:
                self._file.write(piece[: MOST_KEPT_BYTES - self._kept_bytes])
                self._kept_bytes = min(MOST_KEPT_BYTES, self._kept_bytes + len(piece))
