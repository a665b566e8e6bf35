"""Become another command that is killed with its parent and, if asked, has a limit on its data (Linux).

    python -m lowtide.tools.end_with_parent DATA_LIMIT_BYTES COMMAND...

This is not done by a function between fork and exec: where there are threads, that may hang.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from lowtide.child import python_command

_PR_SET_PDEATHSIG = 1


def ended_with_parent(command: Sequence[str], *, data_limit_bytes: int = 0) -> list[str]:
    """The command line that does this; 0 means no limit. Windows has no exec: there, nothing is changed."""
    if sys.platform == "win32":
        return list(command)
    return python_command("-m", "lowtide.tools.end_with_parent", str(data_limit_bytes), *command)


def main(data_limit_bytes: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if data_limit_bytes:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (data_limit_bytes, data_limit_bytes))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
