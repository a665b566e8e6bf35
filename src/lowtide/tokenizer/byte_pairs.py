"""A byte-level BPE vocabulary as plain values, as training produces it and files hold it.

    ids:  special tokens │ the 256 bytes, in the order of their stand-in letters │ one token for each merge

JSON cannot hold arbitrary bytes, so GPT-2 gave each byte a printable stand-in letter: itself where it is
printable, the next free code point from U+0100 on where it is not. A space becomes `Ġ`, a newline `Ċ`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lowtide.settings import PatternName


@dataclass(frozen=True, slots=True, kw_only=True)
class BytePairs:
    """Tokens and merges. Every token is a special one, a single byte, or the result of a merge."""

    pattern: PatternName
    special_tokens: dict[str, int]
    tokens: dict[bytes, int]
    """All tokens that are not special and their ids, in the order of the ids."""
    merges: tuple[tuple[bytes, bytes], ...]
    """By rank: the first is applied first."""

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return max((*self.special_tokens.values(), *self.tokens.values())) + 1


@lru_cache(maxsize=1)
def stand_ins() -> tuple[str, ...]:
    """The letter that stands for each byte in vocab.json, merges.txt and tokenizer.json.

    >>> stand_ins()[0x20], stand_ins()[0x41]
    ('Ġ', 'A')
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    moved = {byte: 0x100 + number for number, byte in enumerate(others)}
    return tuple(chr(moved.get(byte, byte)) for byte in range(256))


def spell(token: bytes) -> str:
    """The token in stand-in letters: `b" the"` is spelled `Ġthe`."""
    letters = stand_ins()
    return "".join([letters[byte] for byte in token])


def unspell(text: str) -> bytes | None:
    """The bytes that stand-in letters stand for, or None where some character is not a stand-in."""
    bytes_of = _bytes_of_letters()
    found = [bytes_of.get(letter) for letter in text]
    return None if None in found else bytes(byte for byte in found if byte is not None)


def bytes_in_order() -> tuple[int, ...]:
    """All 256 bytes in the order of their stand-in letters: the order of their ids after training."""
    letters = stand_ins()
    return tuple(sorted(range(256), key=lambda byte: letters[byte]))


@lru_cache(maxsize=1)
def _bytes_of_letters() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(stand_ins())}
