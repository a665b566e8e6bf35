"""How a process of our own is started: with our Python, and with nothing of the current folder in it."""

from __future__ import annotations

import sys


def python_command(*arguments: str) -> list[str]:
    """`python_command("-m", "lowtide", …)`: every child that runs Python is started by this.

    `-P` keeps the current folder out of `sys.path`: a `json.py` that came with somebody's data would run.
    `PYTHONPATH` stays in force, for that is set on purpose.
    """
    return [sys.executable, "-P", *arguments]
