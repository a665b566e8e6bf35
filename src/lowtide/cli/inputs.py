"""What a newcomer may hand to `tokenize` and `train-tokenizer` by mistake, told before any work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lowtide.cli.settings_file import is_file
from lowtide.errors import UsageError

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_MANIFEST = "lowtide.json"


def check_inputs(inputs: Sequence[str]) -> None:
    """UsageError for an address and for a folder of tokens."""
    for name in inputs:
        if _ADDRESS.match(name) and not is_file(Path(name)):
            raise UsageError(
                f"{name} is an address, and lowtide reads files",
                remedy="fetch it first, and name the file or the folder that it lies in",
            )
        if is_file(Path(name) / _MANIFEST):
            raise UsageError(
                f"{name} holds tokens already: it is a folder that `lowtide tokenize` wrote",
                remedy=f"name the text; `lowtide inspect {name}` shows what is in there, and "
                f"`lowtide train {name} --out RUN` trains on it",
            )
