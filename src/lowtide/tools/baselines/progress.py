"""Progress of a baseline in a small file: any number of processes append to it, and one reader adds up.

5242880          this many more bytes of text are done
= joining        the current stage
# 52133301       the number of tokens that were made
"""

from __future__ import annotations

import os
from pathlib import Path

_STEPS = 500
"""Lines over the whole text: one for every short document would cost more than the document."""


class Progress:
    """Appends lines with single writes, which the system keeps whole among several writers."""

    def __init__(self, path: str, files: list[str]) -> None:
        self._path = path
        self._step_bytes = max(1, sum(Path(file).stat().st_size for file in files) // _STEPS)
        self._unwritten_bytes = 0

    def add(self, text: str) -> None:
        """Count a finished document."""
        self._unwritten_bytes += len(text.encode())
        if self._unwritten_bytes >= self._step_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what is counted so far; each process must call it at the end of its work."""
        self._append(str(self._unwritten_bytes))
        self._unwritten_bytes = 0

    def begin(self, stage: str) -> None:
        """Name a stage that does something else than read and encode."""
        self.flush()
        self._append(f"= {stage}")

    def end(self, tokens: int) -> None:
        """Write the total number of tokens."""
        self.flush()
        self._append(f"# {tokens}")

    def _append(self, line: str) -> None:
        number = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(number, f"{line}\n".encode())
        finally:
            os.close(number)


def read_progress(path: Path) -> tuple[int | None, str, int | None]:
    """Bytes of text that are done, stage and tokens, by all whole lines. None where a program does not tell."""
    done_bytes, stage, tokens = None, "", None
    text = path.read_text(errors="replace") if path.exists() else ""
    for line in text.rpartition("\n")[0].splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "=":
            stage = rest
        elif kind == "#" and rest.isdigit():
            tokens = int(rest)
        elif kind.isdigit():
            done_bytes = (done_bytes or 0) + int(kind)
    return done_bytes, stage, tokens
