"""Word counts and texts on which trainers of byte pairs go wrong: ties, runs, periods, long words.

`HARD_TABLES` are fixed and have names; `word_counts` and `small_texts` make more of their kind.
"""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

WordCounts = dict[bytes, int]

LONGEST_WORD = 2000
SMALL_COUNTS = st.just(1) | st.integers(1, 6)
"""So small that a peer which wants every word repeated can be fed."""
HUGE_COUNTS = st.integers(2**31 - 2, 2**31 + 2) | st.integers(2**32 - 2, 2**48)
"""A sum of these leaves 32 bits; one thousand letters and words of them stay within 63."""

_SCRIPTS = "the naïve Straße привет 你好世界 こんにちは 안녕 שלום नमस्ते ไทย 👍🏽 👩‍👩‍👧 e\u0301 \u00a0\u3000"
_GLUE = (
    " ",
    " ",
    " ",
    "  ",
    "    ",
    "\n",
    "\r\n",
    "\t",
    ".",
    "'s",
    "'LL",
    "123",
    "----",
    "\x00",
    "",
)


def _fibonacci_word(length: int) -> bytes:
    """Never periodic, yet made of few parts: `abaababa…`."""
    shorter, word = b"a", b"ab"
    while len(word) < length:
        shorter, word = word, word + shorter
    return word[:length]


def _thue_morse_word(length: int) -> bytes:
    """Never three times the same part in a row: `abbabaab…`."""
    return bytes(b"ab"[number.bit_count() % 2] for number in range(length))


def _all_words(letters: bytes, *, longest: int) -> WordCounts:
    lengths = range(1, longest + 1)
    return {bytes(word): 1 for length in lengths for word in product(letters, repeat=length)}


HARD_TABLES: dict[str, WordCounts] = {
    "nothing": {},
    "the empty word": {b"": 3, b"ab": 1},
    "single bytes": {bytes([byte]): byte + 1 for byte in range(256)},
    "one pair": {b"ab": 1},
    "one long run": {b"a" * LONGEST_WORD: 1},
    "a run of odd length": {b"a" * 1023: 2},
    "runs of every length": {b"a" * length: 1 for length in range(1, 60)},
    "runs between others": {b"b" + b"a" * length + b"c": 1 + length % 3 for length in range(1, 40)},
    "runs of two letters": {b"a" * m + b"b" * n: 1 for m in range(7) for n in range(7)},
    "blanks": {b" " * length + b"\n": 1 + length % 4 for length in range(1, 50)},
    "period of two": {b"ab" * (LONGEST_WORD // 2): 1},
    "period of two, cut everywhere": {(b"ab" * 30)[first:]: 1 for first in range(60)},
    "period of three": {b"aab" * 300: 2, b"aba" * 200: 1, b"baa" * 100: 3},
    "fibonacci": {_fibonacci_word(LONGEST_WORD): 1},
    "thue-morse": {_thue_morse_word(1024): 1, b"a": 7},
    "all words of two letters": _all_words(b"ab", longest=7),
    "all words of three letters": _all_words(b"abc", longest=4),
    "all pairs of some bytes": _all_words(bytes(range(0, 256, 17)), longest=2),
    "letters whose ids and bytes are ordered differently": _all_words(b" !\xad~", longest=4),
    "every byte in a row": {bytes(range(256)): 1, bytes(reversed(range(256))): 1},
    "scripts": {word.encode() * 2: 1 + len(word) % 3 for word in _SCRIPTS.split()},
    "prose": {b"low": 5, b"lower": 2, b"widest": 3, b"newest": 6},
}


def few_letter_words(*, longest: int) -> st.SearchStrategy[bytes]:
    """Letters drawn from `a`, `ab` or `abc`: nearly every choice is a tie."""
    words = [st.text(letters, max_size=longest) for letters in ("a", "ab", "abc")]
    return st.one_of(words).map(str.encode)


def words_of_runs(*, longest: int) -> st.SearchStrategy[bytes]:
    """A few runs one after the other: `aaaaabaaa`."""
    run = st.builds(lambda letter, times: letter * times, st.sampled_from("abc"), _length(longest))
    return st.lists(run, max_size=6).map(lambda runs: "".join(runs).encode()[:longest])


def periodic_words(*, longest: int) -> st.SearchStrategy[bytes]:
    """A short part again and again, cut somewhere: `abcabcab`."""
    part = st.text("abc", min_size=1, max_size=5).map(str.encode)
    return st.builds(lambda period, size: (period * size)[:size], part, _length(longest))


def byte_words(*, longest: int) -> st.SearchStrategy[bytes]:
    """Any bytes, valid UTF-8 or not."""
    return st.binary(max_size=min(longest, 12))


def utf8_words(*, longest: int) -> st.SearchStrategy[bytes]:
    """Letters of several bytes that share their first ones."""
    letters = st.sampled_from("aé中丰世🙂👍\u0301д") | st.characters(exclude_categories=["Cs"])
    return st.text(letters, max_size=min(longest // 4, 8)).map(str.encode)


def any_words(*, longest: int) -> st.SearchStrategy[bytes]:
    """Words of every kind, mixed."""
    kinds = (few_letter_words, words_of_runs, periodic_words, byte_words, utf8_words)
    return st.one_of([kind(longest=longest) for kind in kinds])


def word_counts(
    *, counts: st.SearchStrategy[int] = SMALL_COUNTS, longest: int = LONGEST_WORD
) -> st.SearchStrategy[WordCounts]:
    """Tables of words of one kind, so that they share pairs, and sometimes of all kinds."""
    kinds = (few_letter_words, words_of_runs, periodic_words, byte_words, utf8_words, any_words)
    return st.one_of(
        [st.dictionaries(kind(longest=longest), counts, max_size=10) for kind in kinds]
    )


def small_texts() -> st.SearchStrategy[str]:
    """Words of several scripts between blanks, line ends, digits and punctuation; some hundred bytes."""
    parts = st.sampled_from([*_SCRIPTS.split(" "), *_GLUE]) | few_letter_words(longest=20).map(
        bytes.decode
    )
    return st.lists(parts, max_size=80).map("".join)


def _length(longest: int) -> st.SearchStrategy[int]:
    """Mostly short, for a long word slows its whole example down."""
    short = st.integers(1, min(12, longest))
    return short | short | st.integers(1, longest)
