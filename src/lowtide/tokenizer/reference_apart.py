"""The reference in a process of its own, behind a fence: where its room is too small, it alone dies.

tokenizers takes 82 to 420 bytes for each byte of a document, 1,400 where a normalizer makes eighteen letters of
one. When memory is refused it ends its process (SIGABRT): no run can plan for the worst, or survive it. The
child reads texts from its standard input and writes ids, and goes when the input is closed.

    to it     what is `_Asked`, then texts; the length (8 bytes) before each
    from it   for each text an `_Answer`: what kind, how many bytes follow, the child's peak; then these bytes
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import numpy as np

from lowtide.child import python_command
from lowtide.errors import DataError, SharedFaultError
from lowtide.memory.allocator import give_back
from lowtide.memory.fence import fence
from lowtide.memory.proc_files import kib_fields, read_text
from lowtide.tokenizer.reference import Ids, ReferenceEncoder, SpecialInText, make_reference
from lowtide.tokenizer.vocabulary import Vocabulary
from lowtide.units import KIB, MIB, format_bytes

APART_BYTES = 24 * MIB
"""The child's interpreter and libraries: 19 MiB were measured."""
LEAST_BYTES_PER_TEXT_BYTE = 80
"""What tokenizers takes at the least; a document that does not fit with this is not tried."""
_LENGTH = struct.Struct("<Q")
_ANSWER = struct.Struct("<QQQ")
_IDS, _FAULT = 0, 1
_PIECE_BYTES = 32 * KIB
_PIECES = 8
_TRIMMED_BYTES = _PIECE_BYTES // 2
"""After a text as long as this the child gives its memory back."""
_HOSTILE_BYTES_PER_TEXT_BYTE = 1500
"""Where not even a piece could be encoded: eighteen letters for one were measured with 1,400."""


class OutOfRoomError(DataError):
    """The reference needs more memory for a text than it has."""


class _Answer(NamedTuple):
    kind: int
    size: int
    peak_bytes: int
    """The most that the child held, its code apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the child must know."""

    vocabulary: Vocabulary
    special_in_text: SpecialInText
    marks: dict[str, int]
    room_bytes: int


class ReferenceApart:
    """A child that encodes as the reference does. It starts with the first text, and again after a death."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        special_in_text: SpecialInText,
        marks: Mapping[str, int] | None = None,
        *,
        room_bytes: int,
    ) -> None:
        self._asked = _Asked(
            vocabulary=vocabulary,
            special_in_text=special_in_text,
            marks=dict(marks or {}),
            room_bytes=room_bytes,
        )
        self._child: subprocess.Popen[bytes] | None = None
        self.peak_bytes = 0
        """The most that the child held during the last text, its code apart."""
        _LIVING.add(self)

    def encode(self, text: bytes) -> Ids:
        """The ids of a whole document; OutOfRoomError where the room does not carry it."""
        child = self._child or self._start()
        assert child.stdin is not None, "as asked for"
        assert child.stdout is not None, "as asked for"
        try:
            _send(child.stdin, text)
            answer = _Answer(*_ANSWER.unpack(_read(child.stdout, _ANSWER.size)))
            content = _read(child.stdout, answer.size)
        except (OSError, EOFError) as cause:
            self.close()
            raise OutOfRoomError(
                f"a document of {format_bytes(len(text))} needs more memory in the reference encoder than the "
                f"{format_bytes(self._asked.room_bytes)} it has",
                remedy="pass a larger `--memory`",
            ) from cause
        except BaseException:  # a child that is half through a text cannot be asked again
            self.close()
            raise
        self.peak_bytes = answer.peak_bytes
        if answer.kind == _FAULT:
            self.close()
            raise SharedFaultError(
                content.decode(errors="replace"),
                remedy="pass a tokenizer that `tokenizers.Tokenizer.from_file` opens and encodes with",
            )
        return np.frombuffer(content, dtype=np.uint32)

    def decode(self, ids: Sequence[int]) -> bytes:
        raise NotImplementedError("nothing is decoded apart")

    def close(self) -> None:
        """The child is gone afterwards."""
        child, self._child = self._child, None
        _ENDED_BYTES[0] = max(_ENDED_BYTES[0], self.peak_bytes)
        self.peak_bytes = 0
        if child is None:
            return
        child.kill()
        for stream in (child.stdin, child.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        child.wait()

    def __del__(self) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: whatever lies in the current folder is not imported. A session of its own: Ctrl-C is for the run.
        self._child = child = subprocess.Popen(
            python_command("-m", __name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ
            | {
                "TOKENIZERS_PARALLELISM": "false",  # a pool of threads would reserve memory
                "MALLOC_ARENA_MAX": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )
        assert child.stdin is not None, "as asked for"
        with suppress(OSError):  # it died at once: the first answer will be missing
            _send(child.stdin, msgspec.msgpack.encode(self._asked))
        return child


_LIVING: weakref.WeakSet[ReferenceApart] = weakref.WeakSet()
_ENDED_BYTES = [0]


def apart_bytes() -> int:
    """The most that our children held during their last texts; those that have ended are told once."""
    ended, _ENDED_BYTES[0] = _ENDED_BYTES[0], 0
    return max(ended, sum(one.peak_bytes for one in list(_LIVING)))


def bytes_per_text_byte(
    text: bytes,
    vocabulary: Vocabulary,
    special_in_text: SpecialInText,
    marks: Mapping[str, int],
    *,
    room_bytes: int,
) -> int:
    """What the reference takes for a byte of this text at most, from the most it took for some pieces of it.

    Half as much again, because its tables double when they are full, and a piece's may not have been so.
    """
    reference = ReferenceApart(vocabulary, special_in_text, marks, room_bytes=room_bytes)
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


def _send(stream: IO[bytes], content: bytes) -> None:
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def _read(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise EOFError("the child is gone")
    return found


# The child


def main() -> None:
    """Answer texts until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = msgspec.msgpack.decode(_receive() or b"", type=_Asked)
    _load_library(asked.vocabulary)
    with fence(asked.room_bytes):
        try:
            reference = make_reference(asked.vocabulary, asked.special_in_text, asked.marks)
        except DataError as error:
            _answer(_FAULT, error.problem.encode())
            return
        give_back()  # reading the file took more than what is left of it
        while (text := _receive()) is not None:
            _encode(reference, text)


def _receive() -> bytes | None:
    length = sys.stdin.buffer.read(_LENGTH.size)
    return sys.stdin.buffer.read(*_LENGTH.unpack(length)) if length else None


def _load_library(vocabulary: Vocabulary) -> None:
    """Its code and first tables are no part of the room."""
    if vocabulary.kind == "json":
        import tokenizers  # noqa: F401
    else:
        import tiktoken  # noqa: F401


def _encode(reference: ReferenceEncoder, text: bytes) -> None:
    _forget_peak()
    try:
        ids = reference.encode(text)
    except MemoryError:
        os._exit(1)  # the parent sees what it would see after an abort
    except BaseException as cause:  # noqa: BLE001 - a Rust panic is no Exception
        if "memory allocation" in str(
            cause
        ):  # the engine of regular expressions says so, and lives
            os._exit(1)
        _answer(_FAULT, f"the reference encoder fails on a document: {cause}".encode())
        return
    _answer(_IDS, ids.tobytes())
    if len(text) >= _TRIMMED_BYTES:
        del ids
        give_back()


def _answer(kind: int, content: bytes) -> None:
    out = sys.stdout.buffer
    out.write(_ANSWER.pack(*_Answer(kind, len(content), _peak_bytes())))
    out.write(content)
    out.flush()


def _forget_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    """The high-water mark without mapped files; 0 where the system does not tell."""
    status = kib_fields(read_text(Path("/proc/self/status")) or "")
    return max(0, status.get("VmHWM", 0) - status.get("RssFile", 0))


if __name__ == "__main__":
    main()
