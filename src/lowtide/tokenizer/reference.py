"""The reference encoders, which define the right ids: tiktoken for rank files, tokenizers for a tokenizer.json.

They are slow (14 and 3 MB/s) and trusted. The fast encoder must give the same ids for every document, and
leaves the texts on which it would not to the reference.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from lowtide.errors import SharedFaultError, UsageError
from lowtide.settings import SpecialInText
from lowtide.tokenizer import hugging_face
from lowtide.tokenizer.patterns import PATTERNS
from lowtide.tokenizer.split_words import find_words
from lowtide.tokenizer.vocabulary import Vocabulary, parse_ranks

Ids = np.ndarray[tuple[int], np.dtype[np.uint32]]

_log = logging.getLogger(__name__)
_ROUND_TRIPS = (
    "The file's size: 12,345 bytes.\n\n\tif (x == 0) { return; }",
    "Dateigröße Привет 你好 🙂",
    "".join(map(chr, range(0x20, 0x7F))),
)


class ReferenceEncoder(Protocol):
    """Encodes and decodes as the reference library does."""

    def encode(self, text: bytes) -> Ids:
        """The ids of one whole document."""

    def decode(self, ids: Sequence[int]) -> bytes:
        """The bytes that the ids stand for."""


def make_reference(
    vocabulary: Vocabulary,
    special_in_text: SpecialInText,
    marks: Mapping[str, int] | None = None,
) -> ReferenceEncoder:
    """Make the reference for a vocabulary. It takes about four times the memory of the vocabulary's file.

    `marks` are private spellings of special tokens: each is found in any text and becomes the id it stands
    for. Text between two of them is encoded as between two special tokens.
    """
    if vocabulary.kind == "json":
        return _JsonReference(vocabulary, special_in_text, marks or {})
    reference = _RanksReference(vocabulary, special_in_text)
    return _BetweenMarks(reference, marks) if marks else reference


def refuse_what_is_not_given_back(vocabulary: Vocabulary) -> None:
    """Raise UsageError for a byte-level tokenizer.json whose decoder does not give back what it encodes.

    A tokenizer that changes text by a normalizer, or leaves some out, is not checked. Loads the file.
    """
    reference = make_reference(vocabulary, "text")
    file = hugging_face.read_file(vocabulary.content, name=vocabulary.name)
    if not hugging_face.keeps_bytes(file) or vocabulary.unknown is not None:
        return
    for text in _ROUND_TRIPS:
        decoded = reference.decode(reference.encode(text.encode()).tolist())
        if decoded != text.encode():
            raise UsageError(
                f"{vocabulary.name} does not decode what it encodes: {text!r} comes back as "
                f"{decoded.decode(errors='replace')[:60]!r}",
                remedy='give the file the decoder {"type": "ByteLevel"}, and every token an id of its own',
            )


class _BetweenMarks:
    """Cuts a text at marks and encodes the parts, as tiktoken does at special tokens."""

    def __init__(self, parts: ReferenceEncoder, marks: Mapping[str, int]) -> None:
        self._parts = parts
        self._ids = {mark.encode(): number for mark, number in marks.items()}
        self._borders = re.compile(b"(" + b"|".join(map(re.escape, self._ids)) + b")")

    def encode(self, text: bytes) -> Ids:
        found: list[Ids] = []
        for part in filter(None, self._borders.split(text)):
            if part in self._ids:
                found.append(np.array([self._ids[part]], dtype=np.uint32))
            else:
                found.append(self._parts.encode(part))
        return np.concatenate(found) if found else np.empty(0, dtype=np.uint32)

    def decode(self, ids: Sequence[int]) -> bytes:
        return self._parts.decode(ids)


class _RanksReference:
    def __init__(self, vocabulary: Vocabulary, special_in_text: SpecialInText) -> None:
        import tiktoken

        assert vocabulary.pattern is not None
        self._pattern = PATTERNS[vocabulary.pattern]
        self._specials = special_in_text == "token"
        self._encoding = tiktoken.Encoding(
            vocabulary.name,
            pat_str=self._pattern,
            mergeable_ranks=parse_ranks(vocabulary.content, name=vocabulary.name),
            special_tokens=vocabulary.special_tokens,
        )

    def encode(self, text: bytes) -> Ids:
        decoded = text.decode()
        try:
            if self._specials:
                ids = self._encoding.encode(decoded, allowed_special="all")
            else:
                ids = self._encoding.encode_ordinary(decoded)
        except BaseException as cause:  # a Rust panic is not an Exception; Ctrl-C must pass
            if isinstance(cause, KeyboardInterrupt | SystemExit | MemoryError) or self._specials:
                raise
            _log.debug("tiktoken failed, cutting words with regex instead", exc_info=cause)
            return self._encode_word_by_word(decoded)
        return np.array(ids, dtype=np.uint32)

    def _encode_word_by_word(self, text: str) -> Ids:
        """Encode a text on which tiktoken's engine gives up, such as a million spaces before a letter."""
        ids: list[int] = []
        for word in find_words(text, self._pattern):
            ids.extend(self._encoding._encode_single_piece(word))
        return np.array(ids, dtype=np.uint32)

    def decode(self, ids: Sequence[int]) -> bytes:
        return self._encoding.decode_bytes(list(ids))


class _JsonReference:
    def __init__(
        self, vocabulary: Vocabulary, special_in_text: SpecialInText, marks: Mapping[str, int]
    ) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(vocabulary.content.decode())
        except BaseException as cause:  # an Exception, or a Rust panic, which is not one
            if isinstance(cause, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            raise SharedFaultError(
                f"tokenizers cannot load {vocabulary.name}: {cause}",
                remedy="pass a file that `tokenizers.Tokenizer.from_file` opens",
            ) from cause
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = special_in_text != "token"
        self._stands_for = self._add_marks(marks)

    def _add_marks(self, marks: Mapping[str, int]) -> dict[int, int]:
        """Add marks as tokens that behave like those they stand for; the real id for each id that they get."""
        import tokenizers

        known = self._tokenizer.get_added_tokens_decoder() if marks else {}
        for mark, number in marks.items():
            like = known[number]
            token = tokenizers.AddedToken(
                mark,
                lstrip=like.lstrip,
                rstrip=like.rstrip,
                single_word=like.single_word,
                normalized=False,
                special=False,  # special ones are text here
            )
            self._tokenizer.add_tokens([token])
        found = {mark: self._tokenizer.token_to_id(mark) for mark in marks}
        return {given: marks[mark] for mark, given in found.items() if given is not None}

    def encode(self, text: bytes) -> Ids:
        encoded = self._tokenizer.encode_batch_fast([text.decode()], add_special_tokens=False)
        stands_for = self._stands_for
        found = encoded[0].ids
        if stands_for:
            found = [stands_for.get(number, number) for number in found]
        return np.array(found, dtype=np.uint32)

    def decode(self, ids: Sequence[int]) -> bytes:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False)).encode()
