"""Cut text into words, the pieces that no merge crosses: the plain version, and tables for the fast one.

    split_words_reference("  it's 1234", "gpt2")    ->  [" ", " it", "'s", " 1234"]
    split_words_reference("  it's 1234", "o200k")   ->  [" ", " it's", " ", "123", "4"]

`native/split_words.h` does the same hundreds of times as fast, with a table of all code points in place of
a regular expression engine. The table is that of Unicode 16, as in `tokenizers` 0.23 and `tiktoken` 0.14.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from lowtide.settings import PatternName
from lowtide.tokenizer.patterns import PLAIN_PATTERNS

PATTERN_NUMBERS: dict[PatternName, int] = {"gpt2": 0, "cl100k": 1, "o200k": 2}
"""The patterns' numbers in the C code."""

CLASS_EXPRESSIONS: dict[int, str] = {
    1: r"\p{L}",
    2: r"\p{N}",
    4: r"\s",
    8: r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
    16: r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
}
"""The meaning of each bit of a code point's class, as in split_words.h: all that the three patterns test."""

CLASS_LETTERS: dict[str, int] = {
    ".": 0,
    "S": 4,  # white space
    "N": 2,  # number
    "U": 1 | 8,  # upper or title case
    "L": 1 | 16,  # lower case
    "C": 1 | 8 | 16,  # a letter without case, or a modifier
    "M": 8 | 16,  # mark
}
"""The letters of the seven classes in the data file. A line of it is a code point and the class it begins."""

CODE_POINTS = 0x110000

_EXAMPLES = dict(zip(CLASS_LETTERS.values(), "☃\u00a0²Éé中\u0301", strict=True))
"""A character of each class, which has belonged to it since the first versions of Unicode."""


@cache
def load_classes() -> npt.NDArray[np.uint8]:
    """The class of every code point, read-only: 1.1 MB, made once in a few milliseconds."""
    data = importlib.resources.files("lowtide.tokenizer") / "data" / "unicode16_classes.txt"
    words = [line.split() for line in data.read_text("ascii").splitlines() if line[:1] != "#"]
    begins = np.array([int(first, 16) for first, _ in words] + [CODE_POINTS])
    classes = np.array([CLASS_LETTERS[letter] for _, letter in words], dtype=np.uint8)
    table: npt.NDArray[np.uint8] = np.repeat(classes, np.diff(begins))
    table.flags.writeable = False
    return table


def split_words_reference(text: str, pattern: PatternName) -> list[str]:
    """The words of a whole text, in order; joined they are the text. About 300 ns a character."""
    return list(find_words(text, PLAIN_PATTERNS[pattern]))


def find_words(text: str, expression: str) -> Iterator[str]:
    """The words that a regular expression finds in a text.

    Every release of `regex` has the letters of another Unicode version. So borders are found in a text in which
    each character is replaced by an example of its class.
    """
    import regex  # 27 ms, which the importers of a constant should not pay

    for match in regex.finditer(expression, as_examples(text)):
        yield text[match.start() : match.end()]


def as_examples(text: str) -> str:
    """Replace each character by an example of its class: `"Ünï中!"` becomes `"Éné中!"`.

    ASCII stays as it is, and so does the long s, which is another case of s.
    """
    examples = np.zeros(max(_EXAMPLES) + 1, dtype="<u4")
    examples[list(_EXAMPLES)] = [ord(example) for example in _EXAMPLES.values()]
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    stays = (points < 0x80) | (points == ord("ſ"))
    return np.where(stays, points, examples[load_classes()[points]]).tobytes().decode("utf-32-le")
