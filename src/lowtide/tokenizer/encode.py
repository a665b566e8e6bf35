"""Blocks of documents in, token ids out: the hot loop, done by gigatoken.

Every document in a block is followed by a delimiter, which the encoder knows as one more special token.
So a whole block is one call, and each document ends where the delimiter's id stands:

    text  = b"Hello there<D>Bye<D>"
    ids   = [15496, 612, 50257, 3886, 50257]        # gpt2; 50257 is the delimiter's own id

Examples come with marks: private spellings of the special tokens that their template wrote. The encoder knows
each as one more special token, with an id of its own above the delimiter's, and turns it into the real one.

Three properties of gigatoken 0.10 are handled here. Its cache of words grows without bound: `renew`
drops it. Its Unicode tables are newer than the reference's: documents with a code point on which the two
differ go through the reference. And `encode_batch` returns an awkward array, whose import alone takes
longer than 50 MB of text: a "padded batch" of one row is a plain numpy array.

At the end stands the check that the fast encoder and the reference agree on the real input, made once a run.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lowtide.errors import ReservedTextError
from lowtide.settings import SpecialInText
from lowtide.tokenizer import hugging_face
from lowtide.tokenizer.disagreements import Reference, contains_disagreement
from lowtide.tokenizer.reference import Ids, ReferenceEncoder, make_reference
from lowtide.tokenizer.reference_apart import ReferenceApart
from lowtide.tokenizer.vocabulary import Vocabulary
from lowtide.units import KIB, MIB, printable

if TYPE_CHECKING:
    from gigatoken.gigatoken_rs import BPETokenizer

_GIGATOKEN_PATTERNS = {"gpt2": "gpt2", "cl100k": "gpt4", "o200k": "o200k"}
PEAK_BYTES_PER_TEXT_BYTE = 14
"""Held while a block is encoded: the text, at worst one id a byte three times (4 + 4 + 4), last as 2 bytes."""
PEAK_BYTES_PER_WORD_BYTE = 36
"""Held for a block that is a single word: measured 21 to 33, most for digits only."""
_LIGHT_BYTES = 512 * KIB
"""tiktoken takes 11 to 53 bytes for each byte of text: this much fits into an encoder's cache share."""
SAMPLE_BYTES = 128 * 1024
"""Amount of text on which the encoders are compared."""
_LEAST_HALVED_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeSettings:
    """The settings that decide how text becomes ids. None of them changes memory."""

    vocabulary: Vocabulary
    delimiter: bytes
    special_in_text: SpecialInText = "text"
    marks: Mapping[str, int] = field(default_factory=dict)
    """Private spellings and the ids of the special tokens they stand for. Only with special tokens as text."""

    @property
    def delimiter_id(self) -> int:
        """The first id that no token has."""
        return self.vocabulary.size

    @property
    def added(self) -> dict[str, int]:
        """The delimiter and the marks, as special tokens of the fast encoder with ids that no token has."""
        names = [self.delimiter.decode(), *self.marks]
        return {name: self.delimiter_id + number for number, name in enumerate(names)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBlock:
    """The ids of a block with the delimiter's id at every document's end, and the positions of these ends."""

    ids: Ids
    ends: np.ndarray[tuple[int], np.dtype[np.int64]]


def encoder_bytes(vocabulary: Vocabulary) -> int:
    """Memory of a fresh encoder. Measured: gpt2 27 MiB, cl100k 39 MiB, o200k 53 MiB."""
    return encoder_bytes_for(vocabulary.size)


def encoder_bytes_for(tokens: int) -> int:
    """Memory of a fresh encoder for a vocabulary of `tokens` tokens."""
    return 16 * MIB + 240 * tokens


def reference_bytes(vocabulary: Vocabulary) -> int:
    """Memory of the reference encoder while it is made.

    Measured with tiktoken: gpt2 21 MiB, cl100k 40 MiB, o200k 75 MiB; with tokenizers 45 MiB for a
    tokenizer.json of 2 MB, 224 MiB for one of 11.5 MB.
    """
    if vocabulary.kind == "json":
        return 6 * MIB + 21 * len(vocabulary.content)
    return 6 * MIB + 380 * vocabulary.size


class Encoder:
    """One thread's encoder. Not shared: gigatoken's own worker threads are not used.

    With `allowance_bytes`, tokenizers runs in a child process, and so does tiktoken for long texts. The child
    may use this much memory for the vocabulary and a document: ReferenceMemoryError if that is too little.
    """

    def __init__(self, settings: EncodeSettings, *, allowance_bytes: int | None = None) -> None:
        self._settings = settings
        self._allowance_bytes = allowance_bytes
        self._reference: ReferenceEncoder | None = None
        self._apart: ReferenceApart | None = None
        self.apart_bytes = 0
        """The child's peak memory for any text since its allowance was set."""
        self._fast: BPETokenizer | None = None
        self.why_reference: str | None = None
        """Why the reference does all the work; None where gigatoken does it."""
        made = make_fast(settings)
        if isinstance(made, str):
            self.why_reference = made
        else:
            self._fast = made

    @property
    def is_fast(self) -> bool:
        """False when gigatoken cannot load this tokenizer and the reference does all the work."""
        return self._fast is not None

    def set_allowance(self, allowance_bytes: int | None) -> None:
        """Set what the child may use from the next document on. A child with another allowance ends."""
        if allowance_bytes != self._allowance_bytes:
            self._allowance_bytes, self.apart_bytes = allowance_bytes, 0
            self.close()

    def close(self) -> None:
        """End the reference's process at once. A later document that needs it starts a new one."""
        apart, self._apart = self._apart, None
        if apart is not None:
            apart.close()

    def renew(self, give_back: Callable[[], object]) -> None:
        """Forget all words seen so far; `give_back` is called when their memory is free. Changes no id."""
        was_fast = self.is_fast
        self._fast = self._reference = None
        self.close()
        give_back()  # the old tables must be gone before the new ones are made
        if was_fast and not isinstance(made := make_fast(self._settings), str):
            self._fast = made

    def encode(self, text: bytes, *, document_count: int) -> EncodedBlock:
        """The ids of a block in which `document_count` documents end."""
        settings = self._settings
        if settings.special_in_text == "fail":
            refuse_special_tokens(text, settings)
        if self._fast is None or self.needs_reference(text):
            ids = self._encode_document_by_document(text)
        else:
            ids = put_real_ids(encode_fast(self._fast, text), settings)
        ends = np.flatnonzero(ids == settings.delimiter_id)
        if len(ends) != document_count:
            raise ReservedTextError(
                f"a text contains {settings.delimiter!r}, which lowtide puts between documents",
                remedy="remove these bytes from the text; no other text is reserved",
                text=settings.delimiter,
            )
        return EncodedBlock(ids=ids, ends=ends)

    def needs_reference(self, text: bytes) -> bool:
        """Whether gigatoken's Unicode tables would cut a word of this text differently.

        An unknown pattern is treated as o200k's, which tests the most classes.
        """
        vocabulary = self._settings.vocabulary
        reference: Reference = "tiktoken" if vocabulary.kind == "ranks" else "tokenizers"
        return contains_disagreement(text, reference, vocabulary.pattern or "o200k")

    def _encode_document_by_document(self, text: bytes) -> Ids:
        """Encode by the reference where the two would differ, and by gigatoken what lies between."""
        settings, fast = self._settings, self._fast
        delimiter = np.array([settings.delimiter_id], dtype=np.uint32)
        pieces: list[Ids] = []
        *documents, rest = text.split(settings.delimiter)
        if rest:  # else nothing follows the last delimiter
            documents.append(rest)
        for needs_reference, group in itertools.groupby(documents, key=self.needs_reference):
            if needs_reference or fast is None:
                for document in group:
                    pieces += [self._encode_by_reference(document), delimiter]
            else:
                joined = settings.delimiter.join(group)
                pieces += [put_real_ids(encode_fast(fast, joined), settings), delimiter]
        if rest:
            pieces.pop()
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.uint32)

    def _encode_by_reference(self, document: bytes) -> Ids:
        reference = self._reference_for(document)
        ids = reference.encode(document)
        if isinstance(reference, ReferenceApart):
            self.apart_bytes = max(self.apart_bytes, reference.peak_bytes)
        return ids

    def _reference_for(self, text: bytes) -> ReferenceEncoder | ReferenceApart:
        """tiktoken in this process for short texts, which need no more than the fast encoder; else the child.

        Each holds the whole vocabulary, and memory is planned for only one of them.
        """
        settings = self._settings
        encoding = (settings.vocabulary, settings.special_in_text, settings.marks)
        is_light = settings.vocabulary.kind == "ranks" and len(text) <= _LIGHT_BYTES
        if self._allowance_bytes is None or is_light:
            self.close()
            self._reference = self._reference or make_reference(*encoding)
            return self._reference
        self._reference = None
        apart = self._apart
        if apart is None:
            apart = self._apart = ReferenceApart(*encoding, allowance_bytes=self._allowance_bytes)
        return apart


def make_fast(settings: EncodeSettings) -> BPETokenizer | str:
    """Make gigatoken's encoder with the delimiter as a special token, or say why only the reference is safe."""
    from gigatoken.gigatoken_rs import BPETokenizer, load_hf_json

    vocabulary = settings.vocabulary
    keep_special = settings.special_in_text == "token"
    assert not (keep_special and settings.marks), "special tokens come by name or by mark"
    if vocabulary.why_reference is not None:
        return vocabulary.why_reference
    if vocabulary.kind == "ranks":
        assert vocabulary.pattern is not None
        special = dict(vocabulary.special_tokens) if keep_special else {}
        special |= settings.added
        with _as_file(vocabulary.content) as path:
            return BPETokenizer.from_tiktoken(
                path, _GIGATOKEN_PATTERNS[vocabulary.pattern], special
            )
    content = hugging_face.with_added(vocabulary.content, settings.added, keep_special=keep_special)
    try:
        made = load_hf_json(content)
    except BaseException as cause:  # a Rust panic is not an Exception; the reference may still work
        if isinstance(cause, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        return f"gigatoken cannot load it ({printable(str(cause))[:200]})"
    if isinstance(made, BPETokenizer):
        return made
    return f"gigatoken takes it for a {type(made).__name__}"


@contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    """Put the content under a path, because gigatoken reads rank files by path only.

    On Linux the file is in memory: a kill must not leave files in the folder for temporary ones.
    """
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("ranks"), "wb") as file:
            file.write(content)
            file.flush()
            yield Path(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.TemporaryDirectory(prefix="lowtide-") as folder:
        path = Path(folder) / "ranks.tiktoken"
        path.write_bytes(content)
        yield path


def encode_fast(fast: BPETokenizer, text: bytes) -> Ids:
    """Encode a block on this thread, with the GIL released."""
    from gigatoken.gigatoken_rs import BytesSource, PadTruncate

    if not text:
        return np.empty(0, dtype=np.uint32)
    matrix, _lengths = fast.encode_batch_padded(BytesSource(text), PadTruncate(0), parallel=False)
    row: Ids = matrix[0]
    return row


def put_real_ids(ids: Ids, settings: EncodeSettings) -> Ids:
    """Replace the ids that the fast encoder gives to marks by those of the special tokens they stand for."""
    if settings.marks:
        places = np.flatnonzero(ids > settings.delimiter_id)
        real = np.fromiter(settings.marks.values(), dtype=ids.dtype, count=len(settings.marks))
        ids[places] = real[ids[places] - (settings.delimiter_id + 1)]
    return ids


def refuse_special_tokens(text: bytes, settings: EncodeSettings) -> None:
    """Raise ReservedTextError for a special token inside a document: `--special-in-text fail`."""
    for token in settings.vocabulary.special_tokens:
        spelled = token.encode()
        if spelled in text:
            text = text.replace(settings.delimiter, b"\0")  # the delimiter is part of no document
        if spelled in text:
            place = text.index(spelled)
            around = text[max(0, place - 30) : place + len(spelled) + 30].decode(errors="replace")
            raise ReservedTextError(
                f"a text contains the special token {token}: …{around}…",
                remedy="pass `--special-in-text text` to read it as plain text, "
                "or `--special-in-text token` to give it the special id",
                text=spelled,
            )


# The check against the reference


def find_disagreement(
    encoder: Encoder, settings: EncodeSettings, pieces: Iterable[bytes]
) -> bytes | None:
    """The first of the pieces whose ids differ between the fast encoder and the reference; None if none do."""
    reference = make_reference(settings.vocabulary, settings.special_in_text, settings.marks)
    for piece in pieces:
        if not np.array_equal(reference.encode(piece), encoder.encode(piece, document_count=0).ids):
            return piece
    return None


def sample_pieces(encoder: Encoder, settings: EncodeSettings, text: bytes) -> list[bytes]:
    """Pieces to compare: the documents in the first `SAMPLE_BYTES` of the text, the last perhaps cut short.

    A document that the encoder leaves to the reference would compare the reference with itself. It is halved
    until only short pieces around such characters are left out. Both encoders take a piece for a
    document of its own, so it does not matter where it was cut.
    """
    documents = text[:SAMPLE_BYTES].split(settings.delimiter)
    documents[-1] = documents[-1].decode(errors="ignore").encode()  # half a character at the cut
    return [piece for document in documents for piece in _fast_pieces(encoder, document)]


def _fast_pieces(encoder: Encoder, text: bytes) -> Iterator[bytes]:
    """Pieces of a text that the encoder does not leave to the reference."""
    if not encoder.needs_reference(text):
        if text:
            yield text
    elif len(text) > _LEAST_HALVED_BYTES:
        middle = len(text) // 2
        while text[middle] & 0xC0 == 0x80:  # inside a character
            middle += 1
        yield from _fast_pieces(encoder, text[:middle])
        yield from _fast_pieces(encoder, text[middle:])


def first_difference(left: np.ndarray, right: np.ndarray) -> int:
    """The first index at which two arrays differ, or where the shorter one ends."""
    shorter = min(len(left), len(right))
    different = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(different[0]) if len(different) else shorter
