"""Become another command that is killed with its parent and, without a cgroup, has a limit on its data.

    python -m lowtide.tools.baselines.start DATA_LIMIT_BYTES COMMAND...

This is not done by a function between fork and exec: where there are threads, that may hang.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(data_limit_bytes: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if data_limit_bytes:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (data_limit_bytes, data_limit_bytes))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
