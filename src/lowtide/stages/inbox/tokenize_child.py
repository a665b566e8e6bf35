"""The process that tokenizes one file: `python -m lowtide.stages.inbox.tokenize_child`. It loads no torch.

When standard input closes, the parent is gone and this process exits at once; the next run resumes from the
last checkpoint.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import asdict, dataclass

import msgspec

from lowtide.child import tell_parent
from lowtide.errors import DataError, LowtideError, SharedFaultError, UsageError
from lowtide.events import Event, Note
from lowtide.settings import TokenizeSettings
from lowtide.stages.inbox.settings import as_line
from lowtide.stages.stop_signals import listen_for_stops
from lowtide.stages.watch_run import ShouldStop

_ABANDONED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the child is asked to do."""

    path: str
    out: str
    settings: TokenizeSettings
    """The settings, with the text of the template that the run began with."""
    fingerprint: str
    """The tokenizer that the run began with."""
    memory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of the file: an error by its kind, or nothing."""

    kind: str = ""
    problem: str = ""
    remedy: str = ""
    ends_run: bool = False
    """Whether it is not the file's fault: the next file would fare no better."""


def main() -> None:
    """One file, from beginning to end."""
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    report, is_prepared = Report(), False
    with listen_for_stops() as should_stop:
        try:
            _refuse_changes(request)
            is_prepared = True
            _tokenize(request, should_stop)
        except LowtideError as error:
            report = Report(
                kind=type(error).__name__,
                problem=error.problem,
                remedy=error.remedy_as(as_line),
                ends_run=not is_prepared or not is_the_files_fault(error),
            )
    tell_parent(report=asdict(report))


def _refuse_changes(request: Request) -> None:
    """Check that tokenizer and template are there and unchanged: an error here is not the fault of a file."""
    from lowtide.stages.prepare import choose_delimiter
    from lowtide.stages.prepare_examples import prepare_examples
    from lowtide.tokenizer.vocabulary import load_vocabulary

    settings = request.settings
    vocabulary = load_vocabulary(settings.tokenizer)
    if vocabulary.fingerprint != request.fingerprint:
        raise _changed(f"the tokenizer {settings.tokenizer}")
    delimiter = choose_delimiter([], settings, vocabulary)
    found = prepare_examples(settings, vocabulary, [], delimiter)
    if found is None:
        return
    found.reading.template.close()
    if (found.settings.template_text, found.settings.template_tokens) != (
        settings.template_text,
        settings.template_tokens,
    ):
        raise _changed(f"the template {settings.template}")


def _changed(what: str) -> UsageError:
    return UsageError(
        f"{what} has changed since the run began",
        remedy="put it back as it was, and run the same command again; or begin a new run, with this run as "
        "its `--init`",
    )


def _tokenize(request: Request, should_stop: ShouldStop) -> None:
    from lowtide.memory.allocator import give_back
    from lowtide.stages.tokenize import tokenize

    give_back()  # what the checks held
    tokenize(
        [request.path],
        request.out,
        request.settings,
        memory=request.memory,
        listen=_tell,
        should_stop=should_stop,
    )


def is_the_files_fault(error: LowtideError) -> bool:
    """Of its rows, its format or its columns; not of memory, nor of a template or tokenizer that all share."""
    if isinstance(error, SharedFaultError) or isinstance(error.__cause__, MemoryError):
        return False
    return isinstance(error, DataError | UsageError)


def _leave_with_parent() -> None:
    # Not through the buffer: its lock would be held at our own end.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(_ABANDONED)


def _tell(event: Event) -> None:
    if isinstance(event, Note) and event.level == "warning":
        tell_parent(note=asdict(event))


if __name__ == "__main__":
    main()
