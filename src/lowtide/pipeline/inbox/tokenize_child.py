"""The process that tokenizes one file: `python -m lowtide.pipeline.inbox.tokenize_child`.

What is asked comes as the first line of its standard input; the rest of that input never comes. When it ends,
whoever asked is gone, and so is this process at once: nobody would take what it makes, and the next run goes on
from its last checkpoint. What it came to goes to standard output as the last line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict

import msgspec

from lowtide.errors import LowtideError
from lowtide.events import Event, Note
from lowtide.pipeline.inbox.child_words import Asked, Report
from lowtide.pipeline.stop_signals import listen_for_stops

_ABANDONED = 1


def main() -> None:
    """One file, from beginning to end."""
    asked = msgspec.json.decode(sys.stdin.buffer.readline(), type=Asked)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    with listen_for_stops() as should_stop:
        from lowtide.pipeline.tokenize import tokenize

        try:
            tokenize(
                [asked.path],
                asked.out,
                asked.settings,
                memory=asked.memory,
                listen=_tell,
                should_stop=should_stop,
            )
            report = Report()
        except LowtideError as error:
            report = Report(kind=type(error).__name__, problem=error.problem, remedy=error.remedy)
    _say("report", asdict(report))


def _leave_with_parent() -> None:
    while os.read(
        sys.stdin.fileno(), 1
    ):  # not through the buffer: its lock would be held at our own end
        pass
    os._exit(_ABANDONED)


def _tell(event: Event) -> None:
    if isinstance(event, Note) and event.level == "warning":
        _say("note", asdict(event))


def _say(what: str, value: object) -> None:
    sys.stdout.write(json.dumps({what: value}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
