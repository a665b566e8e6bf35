"""The command `lowtide`, and `python -m lowtide`."""

from __future__ import annotations

import os
import sys

# `python -m` looks for modules in the current folder: a `json.py` that came with somebody's data would run.
# What Python imports before this line is out of our hands; `lowtide` and `python -P -m lowtide` are safe.
if __name__ == "__main__" and not sys.flags.safe_path:
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib would be imported from there
    except OSError:  # it was removed
        here = ""
    if sys.path[0] == here:
        del sys.path[0]
    del here

import signal
from types import FrameType


def main() -> None:
    """Run the command. Ctrl-C while lowtide is loaded, or on its way out, ends it without a traceback.

    SIGTERM ends a command cleanly that does not listen for stops itself.
    """
    handler = signal.getsignal(signal.SIGINT)
    leaves = handler is signal.default_int_handler  # a shell in the background has it ignored
    if leaves:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _leave)
    from lowtide.cli.main import main as run
    from lowtide.errors import Terminated

    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, _stop)
    try:
        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Terminated:  # while the end of the command was being printed
        sys.exit(75)
    finally:
        # The command is done, and its exit code says how. Any other handler is reset while the interpreter
        # ends, which takes a moment with torch: a SIGTERM that came then would kill.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if leaves:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(_number: int, _frame: FrameType | None) -> None:
    # Nothing has begun; an exception would leave a traceback of whatever is being imported.
    os._exit(75)


def _stop(_number: int, _frame: FrameType | None) -> None:
    from lowtide.errors import Terminated

    raise Terminated


if __name__ == "__main__":
    main()
