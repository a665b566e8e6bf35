"""Make texts that are hard for a trainer of tokenizers: millions of distinct words, ties, repeated letters.

    python bench/distinct_words.py --out /tmp/words.txt --words 20000000 --seed 0
    python bench/distinct_words.py --out /tmp/ties.txt --kind ties --words 50000
    python bench/distinct_words.py --out /tmp/runs.txt --kind runs --words 2000

The same seed gives the same bytes. One document is held at a time, whatever the number of words.

    distinct   invented words, each new one unlike all before it, among ordinary words, numbered names and
               hexadecimal numbers; words come again as Zipf's law has it
    ties       lines of one word of four letters, in random order, every word as often as every other
    runs       one letter repeated up to 500 times
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
from collections.abc import Callable, Iterator

import numpy as np

from bench.jobs import SEPARATOR

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Letters = np.ndarray[tuple[int], np.dtype[np.uint8]]
Spelled = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
"""A word in each row, its unused places 0."""

MOST_DISTINCT_WORDS = 100**4
"""All that four syllables can spell."""
MOST_TIED_WORDS = 26**4
TIES_EACH = 20
"""How often every word of the tied text comes."""
LONGEST_RUN = 500

_TEXT = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but "
    "what all were when we there can an your which their said if do will each about how up out them then "
    "return void const struct static int char for while break case switch include define unsigned long size "
    "value name index count buffer length offset table number string error result data node list state"
)
_ORDINARY = _TEXT.split()
_ENDINGS = ("", "", "", "s", "ed", "er", "ing", "able")
_SYLLABLES = [first + second for first in "bcdfghjklmnprstvwxyz" for second in "aeiou"]
_NAME_ENDS = tuple(f"_{number}" for number in range(1000))
_HEXADECIMAL = b"0123456789abcdef"
_SHORTEST_DOCUMENT_WORDS, _LONGEST_DOCUMENT_WORDS = 500, 40_000


def distinct_words(word_count: int, seed: int) -> Iterator[bytes]:
    """Documents with at least `word_count` distinct words; as stems are small letters, no pattern cuts them.

    A third of all words are new; another third were made before, the k-th word as likely as 1/k.
    """
    source = np.random.default_rng(seed)
    made = 0
    while made < word_count:
        kinds = source.integers(0, 3, _document_words(source))
        new, again, other = np.bincount(kinds, minlength=3).tolist()
        numbers = np.arange(made, made + new, dtype=np.int64)
        made += new
        ranks = _draw_ranks(source, again, most=made)
        yield _join(source, kinds, (_invent(numbers), _invent(ranks), _other(source, other)))


def tied_words(word_count: int, seed: int) -> Iterator[bytes]:
    """Lines of one word of four letters, every word `TIES_EACH` times: the order among equals decides."""
    source = np.random.default_rng(seed)
    numbers = source.permutation(MOST_TIED_WORDS)[:word_count]
    for _ in range(TIES_EACH):
        source.shuffle(numbers)
        for part in np.array_split(numbers, -(-len(numbers) // _LONGEST_DOCUMENT_WORDS)):
            letters = ord("a") + part[:, None] // 26 ** np.arange(4) % 26
            yield _flatten(letters.astype(np.uint8), ends=_letters(b"\n"))


def repeated_letters(word_count: int, seed: int) -> Iterator[bytes]:
    """Words such as `aaaa`, of every length: pairs overlap themselves."""
    source = np.random.default_rng(seed)
    for start in range(0, word_count, 1000):
        count = min(1000, word_count - start)
        lengths = source.integers(1, LONGEST_RUN, count, endpoint=True)
        letters = source.integers(ord("a"), ord("z"), count, endpoint=True)
        places = np.arange(LONGEST_RUN)
        rows = np.where(places < lengths[:, None], letters[:, None], 0)
        yield _flatten(rows.astype(np.uint8), ends=_letters(b" "))


KINDS: dict[str, Callable[[int, int], Iterator[bytes]]] = {
    "distinct": distinct_words,
    "ties": tied_words,
    "runs": repeated_letters,
}
_MOST_WORDS = {"distinct": MOST_DISTINCT_WORDS, "ties": MOST_TIED_WORDS, "runs": 10**9}


def write_documents(path: Path, documents: Iterator[bytes]) -> int:
    """Write the documents, each with the separator after it; returns the bytes written."""
    with path.open("wb") as out:
        return sum(out.write(document + SEPARATOR.encode()) for document in documents)


def _document_words(source: np.random.Generator) -> int:
    return int(source.integers(_SHORTEST_DOCUMENT_WORDS, _LONGEST_DOCUMENT_WORDS))


def _draw_ranks(source: np.random.Generator, count: int, *, most: int) -> Numbers:
    """Numbers below `most`, k about as likely as 1/(k + 1)."""
    ranks: Numbers = (np.exp(source.random(count) * np.log(most + 1)) - 1).astype(np.int64)
    ranks[ranks == most] = most - 1  # what rounding may give
    return ranks


def _invent(numbers: Numbers) -> Spelled:
    """A word for each number: four syllables that no other number has, and an ending."""
    scrambled = numbers * 61_803_337 % MOST_DISTINCT_WORDS  # coprime, so no two numbers meet
    digits = scrambled[:, None] // 100 ** np.arange(4) % 100
    stems = _table(_SYLLABLES)[digits].reshape(len(numbers), 8)
    return np.concatenate([stems, _table(_ENDINGS)[numbers % len(_ENDINGS)]], axis=1)


def _other(source: np.random.Generator, count: int) -> Spelled:
    """Ordinary words; one in eight a numbered name, one in eight a hexadecimal number."""
    words = _table(_ORDINARY)[_draw_ranks(source, count, most=len(_ORDINARY))]
    ends = _table(_NAME_ENDS)[source.integers(0, len(_NAME_ENDS), count)]
    form = source.integers(0, 8, count)
    ends[form != 0] = 0
    other = np.concatenate([words, ends], axis=1)
    other[form == 1] = _hexadecimal(source, int(np.count_nonzero(form == 1)), other.shape[1])
    return other


def _hexadecimal(source: np.random.Generator, count: int, width: int) -> Spelled:
    rows = np.zeros((count, width), dtype=np.uint8)
    rows[:, :2] = list(b"0x")
    rows[:, 2:10] = _letters(_HEXADECIMAL)[source.integers(0, 16, (count, 8))]
    return rows


def _join(
    source: np.random.Generator, kinds: Numbers, spelled: tuple[Spelled, Spelled, Spelled]
) -> bytes:
    """One document of the words of each kind, in the order that `kinds` tells."""
    rows = np.zeros((len(kinds), max(part.shape[1] for part in spelled)), dtype=np.uint8)
    for kind, part in enumerate(spelled):
        rows[kinds == kind, : part.shape[1]] = part
    return _flatten(rows, ends=_letters(b"           \n")[source.integers(0, 12, len(rows))])


def _flatten(rows: Spelled, *, ends: Letters) -> bytes:
    """The words, each with its end: blanks, or new lines."""
    column = np.broadcast_to(ends[:, None], (len(rows), 1))
    flat = np.concatenate([rows, column], axis=1).ravel()
    return bytes(flat[flat != 0])


def _table(words: tuple[str, ...] | list[str]) -> Spelled:
    """The words as rows, filled up with zeros."""
    width = max(map(len, words))
    flat = _letters(b"".join(word.encode().ljust(width, b"\0") for word in words))
    return flat.reshape(len(words), width)


def _letters(text: bytes) -> Letters:
    return np.frombuffer(text, dtype=np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--words", type=int, default=20_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=list(KINDS), default="distinct")
    chosen = parser.parse_args()
    if not 0 < chosen.words <= _MOST_WORDS[chosen.kind]:
        parser.error(f"--kind {chosen.kind} takes 1 to {_MOST_WORDS[chosen.kind]} words")
    size = write_documents(chosen.out, KINDS[chosen.kind](chosen.words, chosen.seed))
    sys.stdout.write(f"{size / 1e6:.0f} MB of text in {chosen.out}\n")


if __name__ == "__main__":
    main()
