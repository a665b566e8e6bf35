"""The process in which a template runs: behind a memory fence, and with a limit on its CPU time.

A template that asks for too much memory gets a MemoryError. One that takes too long is ended by the kernel, in
the middle of whatever it does: no Python has to run for it.
"""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
import time

import jinja2

from lowtide.child import read_frame, run_child, write_frame
from lowtide.memory.fence import fence
from lowtide.settings import Learn
from lowtide.source.examples.jinja_template import JinjaRenderer, RefusedTemplateError
from lowtide.source.examples.render_protocol import (
    ANSWERED_BYTES,
    ANSWERED_SECONDS,
    Answer,
    BadExample,
    Batch,
    Compiled,
    Fault,
    Messages,
    NoMemory,
    Rendered,
    RenderLimits,
    TooLarge,
    decode_batch,
    decode_setup,
    encode_answers,
)
from lowtide.source.examples.turns import BadExampleError


def main() -> None:
    """Serve until standard input ends."""
    if hasattr(signal, "SIGPROF"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # a parent may have ignored it
    data = read_frame(sys.stdin.buffer)
    if data is None:
        return
    setup = decode_setup(data)
    _warm_up()
    gc.freeze()  # what is loaded now stays: no collection has to look at it
    with fence(setup.limits.memory_bytes):
        _limit_time(setup.limits.cpu_seconds)
        try:
            renderer = JinjaRenderer(setup)
        except RefusedTemplateError as error:
            _answer([Fault(what=error.problem, remedy=error.remedy)])
            return
        except MemoryError:
            _answer([NoMemory()])
            return
        _limit_time(0)
        _answer([Compiled(used=renderer.used)])
        while (data := read_frame(sys.stdin.buffer)) is not None:
            _answer(_render_batch(renderer, decode_batch(data), setup.limits))


def _warm_up() -> None:
    """Load what Jinja loads late: it must not count as a template's."""
    jinja2.Environment(autoescape=False).from_string(
        "{% for a in [1] %}{{ a }}{% endfor %}"
    ).render()


def _answer(answers: list[Answer]) -> None:
    write_frame(sys.stdout.buffer, encode_answers(answers))


def _render_batch(renderer: JinjaRenderer, batch: Batch, limits: RenderLimits) -> list[Answer]:
    """Answers to the first examples of a batch, to at least one of them."""
    learn, examples = batch
    answers: list[Answer] = []
    size_bytes, started = 0, time.monotonic()
    for messages in examples:
        _limit_time(limits.cpu_seconds)
        answer = _render(renderer, messages, learn, limits.example_bytes)
        answers.append(answer)
        if isinstance(answer, Rendered):
            size_bytes += sum(map(len, answer.parts))
        is_late = time.monotonic() - started > ANSWERED_SECONDS
        if size_bytes > ANSWERED_BYTES or is_late or isinstance(answer, (Fault, NoMemory)):
            break
    _limit_time(0)
    return answers


def _render(renderer: JinjaRenderer, messages: Messages, learn: Learn, limit_bytes: int) -> Answer:
    try:
        rendered = renderer.render(messages, learn)
    except BadExampleError as error:
        return BadExample(reason=str(error))
    except RefusedTemplateError as error:
        return Fault(what=error.problem, remedy=error.remedy)
    except RecursionError:
        return BadExample(reason="is nested too deeply")
    except MemoryError:
        return NoMemory()
    size_bytes = sum(map(len, rendered.parts))
    return TooLarge(size_bytes=size_bytes) if size_bytes > limit_bytes else rendered


def _limit_time(seconds: float) -> None:
    """End this process after this much CPU time from now; 0 lifts the limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
    elif seconds:  # Windows: wall time, four times as much because the machine may be busy
        faulthandler.dump_traceback_later(4 * seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    run_child(main)
