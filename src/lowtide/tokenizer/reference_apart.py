"""The reference encoder in a child process with a memory limit: when memory runs out, only the child dies.

tokenizers takes 80 to 420 bytes for each byte of a document, 2,100 where a normalizer turns one letter into
eighteen (`bench/reference_memory.py`). When memory is refused, it aborts its process (SIGABRT). No run can plan
for the worst case, and no run would survive it.

    to the child     a `_Setup`, then texts
    from the child   `_Encoded` or `_Fault` as the answer to each
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from lowtide.child import Child, ran_out_of_memory, read_frame, run_child, write_frame
from lowtide.errors import DataError, SharedFaultError
from lowtide.memory.allocator import give_back
from lowtide.memory.fence import fence
from lowtide.memory.proc_files import kib_fields, read_text
from lowtide.settings import SpecialInText
from lowtide.tokenizer.reference import Ids, ReferenceEncoder, make_reference
from lowtide.tokenizer.vocabulary import Vocabulary
from lowtide.units import KIB, MIB, format_bytes, printable

APART_BYTES = 24 * MIB
"""The child's interpreter and libraries: 19 MiB were measured."""
LEAST_BYTES_PER_TEXT_BYTE = 80
"""The least that tokenizers takes; a document that does not fit even so is refused without a try."""
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",  # a pool of threads would reserve memory
    "MALLOC_ARENA_MAX": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # A library in Rust that is refused memory ends the process. A backtrace would need more memory, be refused
    # again, and deadlock on the library's own lock.
    "RUST_BACKTRACE": "0",
    "RUST_LIB_BACKTRACE": "0",
}
_PIECE_BYTES = 32 * KIB
_PIECES = 8
_TRIMMED_BYTES = _PIECE_BYTES // 2
"""After a text of this length or more, the child gives its memory back."""
_HOSTILE_BYTES_PER_TEXT_BYTE = 2200
"""Assumed where not even a piece can be encoded: 2,135 were measured for a letter that becomes eighteen."""
_OTHER_FILE = "pass a tokenizer that `tokenizers.Tokenizer.from_file` opens and encodes with"


class ReferenceMemoryError(DataError):
    """The reference encoder needs more memory for a text than it may use."""


class _Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the child's encoder."""

    vocabulary: Vocabulary
    special_in_text: SpecialInText
    marks: dict[str, int]
    allowance_bytes: int


class _Encoded(msgspec.Struct, frozen=True, kw_only=True, tag="ids"):
    """The ids of a text, four bytes each; none in the answer to a setup."""

    ids: memoryview
    peak_bytes: int
    """The child's peak memory for this text, without its code."""


class _Fault(msgspec.Struct, frozen=True, tag="fault"):
    """The tokenizer failed."""

    problem: str


_Answer: TypeAlias = _Encoded | _Fault
_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


class ReferenceApart:
    """A child that encodes as the reference does. It starts with the first text, and again after it died."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        special_in_text: SpecialInText,
        marks: Mapping[str, int] | None = None,
        *,
        allowance_bytes: int,
    ) -> None:
        self._setup = _Setup(
            vocabulary=vocabulary,
            special_in_text=special_in_text,
            marks=dict(marks or {}),
            allowance_bytes=allowance_bytes,
        )
        self._child: Child | None = None
        self._starting = threading.Lock()
        self._is_closed = False
        self.peak_bytes = 0
        """The child's peak memory for the last text, without its code."""

    def encode(self, text: bytes) -> Ids:
        """The ids of a whole document; ReferenceMemoryError if it needs more memory than the child may use."""
        try:
            child = self._child or self._start(len(text))
            answer = self._ask(child, text, len(text))
        except BaseException:
            self._child = None  # a child that failed is not asked again
            raise
        self.peak_bytes = answer.peak_bytes
        return np.frombuffer(answer.ids, dtype=np.uint32)

    def _start(self, text_bytes: int) -> Child:
        with self._starting:
            if self._is_closed:
                raise _closed_in_use()
            child = self._child = Child(__name__, _ENVIRONMENT)
        self._ask(child, msgspec.msgpack.encode(self._setup), text_bytes)
        return child

    def _ask(self, child: Child, request: bytes, text_bytes: int) -> _Encoded:
        answered = child.ask(request)
        if answered is None:
            raise self._explain_end(*child.end(), text_bytes)
        answer: _Answer = _decode_answer(answered)
        if isinstance(answer, _Fault):
            child.end()
            raise SharedFaultError(answer.problem, remedy=_OTHER_FILE)
        return answer

    def _explain_end(self, code: int, stderr: str, text_bytes: int) -> DataError:
        if self._is_closed:  # we have killed it ourselves
            return _closed_in_use()
        if ran_out_of_memory(code):
            return ReferenceMemoryError(
                f"a document of {format_bytes(text_bytes)} needs more memory in the reference encoder than the "
                f"{format_bytes(self._setup.allowance_bytes)} it has",
                remedy="pass a larger `--memory`",
            )
        last_line = stderr.rpartition("\n")[2]
        return SharedFaultError(
            f"the reference encoder of {self._setup.vocabulary.name} ended its process with code {code}: "
            f"{printable(last_line[-200:])}",
            remedy=_OTHER_FILE,
        )

    def close(self) -> None:
        """End the child at once, even while another thread starts it or waits for it. No other is started."""
        with self._starting:
            self._is_closed = True
            child, self._child = self._child, None
        if child is not None:
            child.end()


def _closed_in_use() -> SharedFaultError:
    return SharedFaultError(
        "the reference encoder was closed while it was in use",
        remedy="run the same command again",
    )


def bytes_per_text_byte(text: bytes, reference: ReferenceApart) -> int:
    """An upper estimate of the reference's memory for each byte of this text, measured on pieces of it.

    It is 1.5 times the highest measurement: tables double when they are full, which may not happen in a piece.
    If the reference is closed meanwhile, the worst is assumed.
    """
    most = LEAST_BYTES_PER_TEXT_BYTE
    try:
        reference.encode(b"")
        before_bytes = reference.peak_bytes
        for start in range(0, len(text), max(_PIECE_BYTES, len(text) // _PIECES)):
            piece = text[start : start + _PIECE_BYTES].decode(errors="ignore").encode()
            reference.encode(piece)
            taken_bytes = reference.peak_bytes - before_bytes
            if len(piece) > _PIECE_BYTES // 2:
                most = max(most, taken_bytes // len(piece))
    except DataError:
        most = _HOSTILE_BYTES_PER_TEXT_BYTE
    finally:
        reference.close()
    return most * 3 // 2


# The child


def main() -> None:
    """Answer texts until standard input ends."""
    data = read_frame(sys.stdin.buffer)
    if data is None:
        return
    setup = msgspec.msgpack.decode(data, type=_Setup)
    # Loaded before the limit is set: a library's code and first tables do not count.
    if setup.vocabulary.kind == "json":
        import tokenizers  # noqa: F401
    else:
        import tiktoken  # noqa: F401
    with fence(setup.allowance_bytes):
        try:
            reference = make_reference(setup.vocabulary, setup.special_in_text, setup.marks)
        except DataError as error:
            _answer(_Fault(error.problem))
            return
        give_back()  # reading the file took more memory than its tables keep
        _answer(_Encoded(ids=memoryview(b""), peak_bytes=_peak_bytes()))
        while (text := read_frame(sys.stdin.buffer)) is not None:
            _encode(reference, text)


def _encode(reference: ReferenceEncoder, text: bytes) -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    try:
        ids = reference.encode(text)
    except MemoryError:
        raise
    except BaseException as cause:
        if "memory allocation" in str(cause):  # how the regular expression engine reports it
            raise MemoryError from cause
        _answer(_Fault(f"the reference encoder fails on a document: {cause}"))
        return
    _answer(_Encoded(ids=ids.data.cast("B"), peak_bytes=_peak_bytes()))
    if len(text) >= _TRIMMED_BYTES:
        del ids
        give_back()


def _answer(answer: _Answer) -> None:
    write_frame(sys.stdout.buffer, msgspec.msgpack.encode(answer))


def _peak_bytes() -> int:
    """Peak memory without mapped files since it was reset; 0 where the system does not report it."""
    status = kib_fields(read_text(Path("/proc/self/status")) or "")
    return max(0, status.get("VmHWM", 0) - status.get("RssFile", 0))


if __name__ == "__main__":
    run_child(main)
