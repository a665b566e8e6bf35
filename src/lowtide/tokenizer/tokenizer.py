"""`lowtide.Tokenizer`: text to ids and back, from Python.

    tokenizer = lowtide.Tokenizer.load("gpt2")
    ids = tokenizer.encode("Hello there")          # [15496, 612]
    tokenizer.decode(ids)                          # "Hello there"

Ids are those that `lowtide tokenize` gives with the same tokenizer, and those of tokenizers (of tiktoken, for
rank files) on the same text. The first text waits until the encoder is made (0.1 s); after that a short one
takes about 10 µs. An encoder occupies about 40 MiB, and up to some 128 MiB more for the words that it has seen.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Literal, get_args

import numpy as np

from lowtide.errors import DataError, UsageError
from lowtide.memory.allocator import give_back
from lowtide.memory.meter import private_bytes
from lowtide.settings import PatternName, SpecialInText
from lowtide.storage.paths import as_path
from lowtide.storage.publish import storage_errors, write_atomically
from lowtide.tokenizer.byte_pair_files import (
    TRAINED_MANIFEST_NAME,
    byte_pairs_of,
    find_pair_files,
    rank_file_name,
    read_pair_files,
    refuse_spelled_alike,
    take_named_end,
    tokenizer_files,
    tokenizer_json,
    why_not_byte_pairs,
)
from lowtide.tokenizer.byte_pairs import BytePairs
from lowtide.tokenizer.encode import Encoder, EncodeSettings
from lowtide.tokenizer.hugging_face import overlap
from lowtide.tokenizer.patterns import PATTERNS
from lowtide.tokenizer.reference import (
    Ids,
    ReferenceEncoder,
    make_reference,
    refuse_what_is_not_given_back,
)
from lowtide.tokenizer.text_pieces import cut_into_pieces
from lowtide.tokenizer.vocabulary import Vocabulary, from_json, load_vocabulary, parse_ranks
from lowtide.units import MIB

_MARK = "\x00<|lowtide-text|>"
"""Stands between the texts of a batch. A text that contains it goes through the reference."""
_BATCH_CHARACTERS = 1 << 20
_RENEW_AFTER_BYTES = 16 * MIB
_GROWTH_BYTES = 128 * MIB
"""After every 16 MiB of text, an encoder is renewed if the process has grown by 128 MiB."""
_CONTEXT_TOKENS = 8
_UNKNOWN = "\N{REPLACEMENT CHARACTER}".encode()


class Tokenizer:
    """A tokenizer that was loaded or trained. Values never change, so it may be copied and pickled.

    Threads may share one: calls take turns. To use several cores, give each thread its own `copy.copy`.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._engines: dict[Literal["text", "token"], _Engine] = {}
        self._lock = Lock()

    @classmethod
    def load(cls, source: str | Path) -> Tokenizer:
        """Open a tokenizer: a folder of `lowtide train-tokenizer`, a tokenizer.json or a folder with one,
        vocab.json + merges.txt (either one, or their folder), a .tiktoken file, or a name: gpt2, cl100k_base,
        o200k_base (the last two from tiktoken's cache or the network).

        A tokenizer.json that is not a plain byte-level BPE (another model, a normalizer, a pattern of its
        own) encodes and decodes through the tokenizers library; `merges`, `vocabulary` and `save` refuse.
        """
        files = find_pair_files(source)
        if files is not None:
            folder = files[0].resolve().parent.name
            return cls.from_byte_pairs(read_pair_files(*files), name=folder)
        return cls(take_named_end(load_vocabulary(str(source)), Path(source)))._checked()

    @classmethod
    def from_byte_pairs(cls, pairs: BytePairs, *, name: str = "tokenizer") -> Tokenizer:
        """A tokenizer of tokens and merges; words are cut by the pattern in its plain spelling."""
        refuse_spelled_alike(pairs)
        return cls(from_json(tokenizer_json(pairs), name=name))._checked()

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json, vocab.json, merges.txt, tokenizer.PATTERN.tiktoken and what
        transformers.AutoTokenizer needs. Each file is whole or absent; tokenizer.json comes last.
        """
        target = as_path(folder)
        if (target / TRAINED_MANIFEST_NAME).exists():
            raise UsageError(
                f"{target} holds a trained tokenizer, whose {TRAINED_MANIFEST_NAME} would not fit any more",
                remedy="save to another folder",
            )
        files = tokenizer_files(self.byte_pairs, end_of_text=self.end_of_text)
        with storage_errors(target):
            target.mkdir(parents=True, exist_ok=True)
            for stale in {rank_file_name(pattern) for pattern in PATTERNS} - files.keys():
                (target / stale).unlink(missing_ok=True)  # from a tokenizer saved here before
        for name, content in files.items():
            write_atomically(target / name, content)

    def encode(self, text: str | bytes, *, special_in_text: SpecialInText = "text") -> list[int]:
        """The ids of a text, as a list. Nothing is added: no end-of-text, no beginning.

        The name of a special token inside the text is text. With `special_in_text="token"` it becomes the
        special id (the leftmost, then the longest is taken), with `"fail"` it is an error.
        """
        ids: list[int] = self.encode_to_numpy(text, special_in_text=special_in_text).tolist()
        return ids

    def encode_to_numpy(self, text: str | bytes, *, special_in_text: SpecialInText = "text") -> Ids:
        """The ids of a text as a uint32 array: 4 bytes a token, where a list takes 40."""
        found = bytearray()  # grows in place, where joining arrays would hold them twice
        for piece in self._cut([_as_text(text)], special_in_text):
            found += self._encode_piece(piece, special_in_text).tobytes()
        return np.frombuffer(found, dtype=np.uint32)

    def encode_batch(
        self, texts: Iterable[str | bytes], *, special_in_text: SpecialInText = "text"
    ) -> list[list[int]]:
        """The ids of many texts, each by itself; short ones faster than one by one."""
        found: list[list[int]] = []
        for batch in _batches(map(_as_text, texts)):
            if len(batch) == 1:
                found.append(self.encode(batch[0], special_in_text=special_in_text))
                continue
            for text in batch:
                self._refuse_special_tokens(text, special_in_text)
            with self._lock:
                found += self._engine(special_in_text).encode_many(list(map(_as_utf8, batch)))
        return found

    def encode_iterable(
        self, texts: Iterable[str], *, special_in_text: SpecialInText = "text"
    ) -> Iterator[int]:
        """The ids of one long text that comes in pieces, such as an open file, one after the other.

        They are those of `encode("".join(texts))`, wherever the pieces end; for separate texts use
        `encode_batch`. Holds about 64 KiB of text, or the longest stretch without
        a space or a newline. With an unknown pattern, the whole text is held.
        """
        for piece in self._cut(texts, special_in_text):
            yield from self._encode_piece(piece, special_in_text).tolist()

    def decode(self, ids: Iterable[int], *, errors: str = "replace") -> str:
        """The text of ids (a list, an array, a tensor). A token may be part of a character: bytes that are
        not UTF-8 become `�`, or are handled as `errors` says.
        """
        return self.decode_bytes(ids).decode(errors=errors)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids, special tokens by their names; an id that does not exist is a UsageError."""
        numbers: Iterable[int] = ids.tolist() if hasattr(ids, "tolist") else ids
        if self._reason is not None:
            numbers = list(numbers)
            for number in numbers:
                if not 0 <= number < self.size:
                    raise self._unknown_id(number)
            with self._lock:
                return self._engine("text").reference.decode(numbers)
        try:
            return b"".join(map(self._bytes_by_id.__getitem__, numbers))
        except KeyError as cause:
            raise self._unknown_id(cause.args[0]) from cause

    @property
    def name(self) -> str:
        """The name, file or folder that the tokenizer was loaded from."""
        return self._vocabulary.name

    @property
    def size(self) -> int:
        """One more than the largest id, special tokens included: the rows that an embedding needs."""
        return self._vocabulary.size

    @property
    def pattern(self) -> PatternName | None:
        """The pattern that cuts text into words, or None for one that lowtide does not know."""
        return self._vocabulary.pattern

    @property
    def special_tokens(self) -> dict[str, int]:
        """Names and ids of the special tokens. They are found in a text only if `special_in_text` says so."""
        return dict(self._vocabulary.special_tokens)

    @property
    def end_of_text(self) -> int | None:
        """The id that ends a document, if there is one: that of the `eos_token` in a tokenizer_config.json
        beside the tokenizer.json, else of the special token with a usual name, such as `<|endoftext|>`.
        """
        return self._vocabulary.end_of_text

    @property
    def vocabulary(self) -> dict[int, bytes]:
        """The bytes of every id, special tokens by their names, in the order of ids."""
        if self._reason is not None:
            byte_pairs_of(self._vocabulary)  # raises an error that says why not
        return dict(self._bytes_by_id)

    @property
    def merges(self) -> tuple[tuple[bytes, bytes], ...]:
        """The merges by rank. For a .tiktoken file or a name they are recovered once, in 1 s for gpt2."""
        return self.byte_pairs.merges

    @cached_property
    def byte_pairs(self) -> BytePairs:
        """Tokens and merges as plain values; a UsageError for what is not a plain byte-level BPE."""
        return byte_pairs_of(self._vocabulary)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        shown = dict(list(self.special_tokens.items())[:3])
        more = f" and {len(self.special_tokens) - 3} more" if len(self.special_tokens) > 3 else ""
        return (
            f"Tokenizer({self.name!r}, size={self.size}, pattern={self.pattern!r}, "
            f"special_tokens={shown}{more})"
        )

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Vocabulary]]:
        return type(self), (self._vocabulary,)  # encoders and locks are not copied

    def _checked(self) -> Tokenizer:
        """Find damage when a file is opened, not with the first text. Rank files have been read already."""
        if self._reason is not None:
            refuse_what_is_not_given_back(self._vocabulary)
        elif self._vocabulary.kind == "json":
            _found = self.byte_pairs
        return self

    @cached_property
    def _reason(self) -> str | None:
        """Why this is not a plain byte-level BPE; None if it is one."""
        return why_not_byte_pairs(self._vocabulary)

    @cached_property
    def _bytes_by_id(self) -> dict[int, bytes]:
        vocabulary = self._vocabulary
        if vocabulary.kind == "ranks":  # without looking for merges
            tokens = parse_ranks(vocabulary.content, name=vocabulary.name)
        else:
            tokens = self.byte_pairs.tokens
        named = {number: token.encode() for token, number in vocabulary.special_tokens.items()}
        ordinary = {number: token for token, number in tokens.items()}
        return dict(sorted({**ordinary, **named}.items()))

    def _unknown_id(self, number: object) -> UsageError:
        return UsageError(
            f"{number!r} is not an id of {self.name}, whose ids end at {self.size - 1}",
            remedy="decode ids with the tokenizer that made them",
        )

    def _encode_piece(self, piece: str, special_in_text: SpecialInText) -> Ids:
        self._refuse_special_tokens(piece, special_in_text)
        with self._lock:
            return self._engine(special_in_text).encode(_as_utf8(piece))

    def _engine(self, special_in_text: SpecialInText) -> _Engine:
        if special_in_text not in get_args(SpecialInText):
            raise UsageError(
                f"special_in_text cannot be {special_in_text!r}",
                remedy=f"pass one of {', '.join(get_args(SpecialInText))}",
            )
        mode: Literal["text", "token"] = "token" if special_in_text == "token" else "text"
        if mode not in self._engines:
            self._engines[mode] = _Engine(self._vocabulary, mode)
        return self._engines[mode]

    def _refuse_special_tokens(self, text: str, special_in_text: SpecialInText) -> None:
        if special_in_text != "fail":
            return
        found = next((name for name in self._vocabulary.special_tokens if name in text), None)
        if found is not None:
            place = text.index(found)
            around = text[max(0, place - 30) : place + len(found) + 30]
            raise DataError(
                f"a text contains the special token {found}: …{around}…",
                remedy='pass special_in_text="text" to read it as plain text, or "token" to give it its id',
            )

    def _cut(self, texts: Iterable[str], special_in_text: SpecialInText) -> Iterator[str]:
        unsplittable = self._vocabulary.added_tokens
        if special_in_text != "text":
            unsplittable += tuple(self._vocabulary.special_tokens)
        return cut_into_pieces(texts, self.pattern, unsplittable)


def decode_stream(tokenizer: Tokenizer, ids: Iterator[int]) -> Iterator[str]:
    """Yield text as soon as its last byte is known: a character may be spread over several tokens.

    An id that the tokenizer does not have, but a model may predict, becomes `�`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    seen: list[int] = []
    for token in ids:
        text = decoder.decode(_bytes_after(tokenizer, seen, token))
        if text:
            yield text
    if rest := decoder.decode(b"", final=True):
        yield rest


def _bytes_after(tokenizer: Tokenizer, seen: list[int], token: int) -> bytes:
    """The bytes that a token adds to those in `seen`, where it is appended and the last few are kept.

    It is not decoded alone: in some tokenizers the first token of a text loses its leading space.
    """
    before = tokenizer.decode_bytes(seen)
    try:
        after = tokenizer.decode_bytes([*seen, token])
    except UsageError:
        return _UNKNOWN
    seen[:] = [*seen[-_CONTEXT_TOKENS:], token]
    return after[len(before) :]


class _Engine:
    """An encoder for one way to treat special tokens, renewed before its words take too much memory."""

    def __init__(self, vocabulary: Vocabulary, special_in_text: Literal["text", "token"]) -> None:
        self._settings = EncodeSettings(
            vocabulary=vocabulary, delimiter=_MARK.encode(), special_in_text=special_in_text
        )
        self._encoder = Encoder(self._settings)
        self._bytes_when_made = private_bytes()
        self._encoded_bytes = 0
        self._look_again_at = _RENEW_AFTER_BYTES
        sought = (*vocabulary.added_tokens, *vocabulary.special_tokens)
        self._mark_is_safe = not any(overlap(_MARK, t) or overlap(t, _MARK) for t in sought)

    @cached_property
    def reference(self) -> ReferenceEncoder:
        """The library's own encoder, for what the fast one cannot do."""
        return make_reference(self._settings.vocabulary, self._settings.special_in_text)

    def encode(self, text: bytes) -> Ids:
        if self._settings.delimiter in text:
            return self.reference.encode(text)
        self._renew_if_due(len(text))
        return self._encoder.encode(text, document_count=0).ids

    def encode_many(self, texts: Sequence[bytes]) -> list[list[int]]:
        mark = self._settings.delimiter
        if not self._mark_is_safe or any(mark in text for text in texts):
            return [self.encode(text).tolist() for text in texts]
        block = mark.join([*texts, b""])
        self._renew_if_due(len(block))
        encoded = self._encoder.encode(block, document_count=len(texts))
        ids: list[int] = encoded.ids.tolist()
        ends: list[int] = encoded.ends.tolist()
        starts = [0, *(end + 1 for end in ends)]
        return [ids[start:end] for start, end in zip(starts, ends, strict=False)]

    def _renew_if_due(self, coming_bytes: int) -> None:
        self._encoded_bytes += coming_bytes
        if self._encoded_bytes < self._look_again_at:
            return
        if private_bytes() - self._bytes_when_made > _GROWTH_BYTES:
            self._encoder.renew(give_back)
            self._bytes_when_made, self._encoded_bytes = private_bytes(), 0
        self._look_again_at = self._encoded_bytes + _RENEW_AFTER_BYTES


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts to be encoded in one call; a long one has a batch of its own."""
    batch: list[str] = []
    length = 0
    for text in texts:
        if batch and length + len(text) > _BATCH_CHARACTERS:
            yield batch
            batch, length = [], 0
        batch.append(text)
        length += len(text)
    if batch:
        yield batch


def _as_text(text: str | bytes) -> str:
    try:
        return text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as cause:
        raise DataError(
            f"the text is not UTF-8: {cause}",
            remedy='decode it yourself, such as text.decode("latin-1") or text.decode(errors="replace")',
        ) from cause


def _as_utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as cause:
        raise DataError(
            f"the text contains half of a surrogate pair, which UTF-8 cannot encode: {cause}",
            remedy='replace it, such as by text.encode(errors="replace")',
        ) from cause
