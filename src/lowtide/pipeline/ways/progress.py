"""How far a way has come, told through a small file: any number of processes append to it, one reader adds up.

5242880          so many more bytes of text are done
= joining        what it does now
# 52133301       so many tokens were made
"""

from __future__ import annotations

import os
from pathlib import Path

_STEPS = 500
"""Told so often over the whole: a line for every short document would cost more than the document."""


class Progress:
    """Appends whole lines, which the system keeps whole among several writers."""

    def __init__(self, path: str, files: list[str]) -> None:
        self._path = path
        self._step_bytes = max(1, sum(Path(file).stat().st_size for file in files) // _STEPS)
        self._untold_bytes = 0

    def add(self, text: str) -> None:
        """A document is done."""
        self._untold_bytes += len(text.encode())
        if self._untold_bytes >= self._step_bytes:
            self.flush()

    def flush(self) -> None:
        """Tell what was not told yet: at the end of each process's work."""
        self._append(str(self._untold_bytes))
        self._untold_bytes = 0

    def begin(self, stage: str) -> None:
        """From here on the way does something else than to read and encode."""
        self.flush()
        self._append(f"= {stage}")

    def end(self, tokens: int) -> None:
        """All is done."""
        self.flush()
        self._append(f"# {tokens}")

    def _append(self, line: str) -> None:
        number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(number, f"{line}\n".encode())
        finally:
            os.close(number)
