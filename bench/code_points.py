"""Find every code point on which gigatoken cuts words unlike a reference, whatever the vocabulary.

    python bench/code_points.py                                       every scalar value, 7 minutes
    python bench/code_points.py --reference tiktoken --pattern gpt2   one of the six pairs
    python bench/code_points.py --wide                                350 contexts too, an hour

Prints the ranges found, and exits 1 when they are not those of `lowtide.tokenizer.disagreements`.

A border between words shows in the ids only where the vocabulary would have merged across it. So the
vocabulary here is made for it: every byte, and every pair of bytes as a merge. The pairs that join an
ASCII character and another come first, so that no other merge takes their bytes before they meet:

    "a中"    one word: [a E4] [B8 AD]        two words: [a] [E4 B8] [AD]
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import tiktoken
from gigatoken.gigatoken_rs import BPETokenizer, load_hf_json
from tokenizers import Tokenizer

from lowtide.settings import PatternName
from lowtide.tokenizer.disagreements import DISAGREEMENTS, Ranges, Reference
from lowtide.tokenizer.patterns import PATTERNS

Ids = np.ndarray[tuple[int], np.dtype[np.uint32]]

SHORT = "\na{c}b 1{c}2 !{c}! A{c}A a{c}a A{c}Bb '{c} A{c}'s{c} a'{c} a'l{c} a'{c}l\n"
"""Enough to tell number, white space, mark, every case of letter and contraction from each other."""
NEIGHBOURS = (*"aA\u4e2d\u01c5\u02b01' \t\n/!\u0301\u00a0", "{c}")
"""Lower, upper, caseless, title and modifier letter, digit, white space, punctuation, mark, itself."""
CONTRACTIONS = ("'s", "'S", "'ll", "'lL", "'Re")
RUNS = (
    *("  {c}", "   {c}{c}  {c}", "\n\n{c}", "\n {c}", "{c}\n\n", "{c}\r\n", "\r\n{c}", " {c}\n"),
    *("\t\t{c}", "{c}/\n", "{c}//", "!{c}/\n", "!{c}\n\n", "12{c}34", "1{c}{c}{c}{c}{c}2"),
    *(
        "{c}{c}{c}{c}",
        "aB{c}Cd",
        "AB{c}cD",
        "Ab{c}C",
        "A{c}Bc",
        "aa{c}AA",
        "AA{c}aa",
        "{c}A{c}a{c}",
    ),
)
ENDS = ("{c}", "a{c}", " {c}", "{c} ", "{c}a", "'{c}", "{c}\n", "{c}{c}")
"""Each a text of its own: what stands first and last in a text."""
WIDE_LIMIT = 0x20000
"""Above it lie ideographs and code points never assigned, all alike: `SHORT` sees those."""

_GIGATOKEN_NAMES: dict[PatternName, str] = {"gpt2": "gpt2", "cl100k": "gpt4", "o200k": "o200k"}
_JSON_PATTERNS: dict[PatternName, str] = {
    "cl100k": r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
    r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    "o200k": PATTERNS["o200k"],
}
"""As tokenizer.json files spell them: the engine of `tokenizers` misreads the possessive `{1,3}+`."""
_SLICE_CODE_POINTS = 256
_CACHE_BYTES = 32_000_000
"""gigatoken remembers every word; after this much text it is made anew."""


def scalar_values() -> list[int]:
    """Every code point that UTF-8 can spell: 1,112,064 of them."""
    return [*range(0xD800), *range(0xE000, 0x110000)]


def made_vocabulary(*, right_first: bool) -> list[bytes]:
    """256 bytes and 65,536 pairs, by rank: first those across an ASCII border, on the side asked for."""

    def place(pair: bytes) -> int:
        left_is_ascii, right_is_ascii = pair[0] < 0x80, pair[1] < 0x80
        if left_is_ascii != right_is_ascii:
            return 0 if right_is_ascii == right_first else 1
        return 3 if left_is_ascii else 2 if pair[1] >= 0xC0 else 4

    pairs = [bytes(pair) for pair in product(range(256), repeat=2)]
    random.Random(right_first).shuffle(pairs)
    return [bytes([byte]) for byte in range(256)] + sorted(pairs, key=place)


class Rivals:
    """gigatoken and a reference with the same pattern and vocabulary."""

    def __init__(
        self, reference: Reference, pattern: PatternName, vocabulary: Sequence[bytes]
    ) -> None:
        self._make_fast, self._encode_plain = (
            _tiktoken_rivals(pattern, vocabulary)
            if reference == "tiktoken"
            else _tokenizers_rivals(pattern, vocabulary)
        )
        self._fast = self._make_fast()
        self._seen_bytes = 0

    def agree(self, text: str) -> bool:
        """Whether both give the same ids for a whole text."""
        encoded = text.encode()
        self._seen_bytes += len(encoded)
        if self._seen_bytes > _CACHE_BYTES:
            self._fast = self._make_fast()
            self._seen_bytes = 0
        return np.array_equal(self._fast.encode(encoded), self._encode_plain(text))


MadeRivals = tuple[Callable[[], BPETokenizer], Callable[[str], Ids]]


def _tiktoken_rivals(pattern: PatternName, vocabulary: Sequence[bytes]) -> MadeRivals:
    ranks = {token: rank for rank, token in enumerate(vocabulary)}
    plain = tiktoken.Encoding(
        "made", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={}
    )
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items())
    content = b"".join(lines)

    def make_fast() -> BPETokenizer:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "made.tiktoken"
            path.write_bytes(content)
            return BPETokenizer.from_tiktoken(path, _GIGATOKEN_NAMES[pattern], None)

    return make_fast, lambda text: np.array(plain.encode_ordinary(text), dtype=np.uint32)


def _tokenizers_rivals(pattern: PatternName, vocabulary: Sequence[bytes]) -> MadeRivals:
    content = _tokenizer_json(pattern, vocabulary)
    plain = Tokenizer.from_str(content)

    def make_fast() -> BPETokenizer:
        made = load_hf_json(content)
        assert isinstance(made, BPETokenizer)
        return made

    def encode_plain(text: str) -> Ids:
        return np.array(plain.encode_batch_fast([text])[0].ids, dtype=np.uint32)

    return make_fast, encode_plain


def _tokenizer_json(pattern: PatternName, vocabulary: Sequence[bytes]) -> str:
    letters = _byte_letters()
    spelled = ["".join(letters[byte] for byte in token) for token in vocabulary]
    bytes_to_letters = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": pattern == "gpt2",
    }
    split = {
        "type": "Split",
        "pattern": {"Regex": _JSON_PATTERNS.get(pattern, "")},
        "behavior": "Isolated",
        "invert": False,
    }
    both = {"type": "Sequence", "pretokenizers": [split, bytes_to_letters]}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": bytes_to_letters if pattern == "gpt2" else both,
            "model": {
                "type": "BPE",
                "vocab": {token: number for number, token in enumerate(spelled)},
                "merges": [list(token) for token in spelled if len(token) == 2],
            },
        }
    )


def _byte_letters() -> list[str]:
    """How a byte-level tokenizer.json writes each byte: itself where it can be seen, else above U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    above = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(above)) for byte in range(256)]


def differing(code_points: Sequence[int], template: str, rivals: Rivals) -> list[int]:
    """Those of the code points for which the template, filled with them, is encoded in two ways."""
    if rivals.agree("".join(template.replace("{c}", chr(point)) for point in code_points)):
        return []
    if len(code_points) == 1:
        return list(code_points)
    middle = len(code_points) // 2
    found = [
        *differing(code_points[:middle], template, rivals),
        *differing(code_points[middle:], template, rivals),
    ]
    return found or list(code_points)  # a difference that only their neighbourhood shows is one too


def find_differing(code_points: Sequence[int], template: str, rivals: Rivals) -> Iterator[int]:
    """The same for any number of code points, slice by slice."""
    for start in range(0, len(code_points), _SLICE_CODE_POINTS):
        yield from differing(code_points[start : start + _SLICE_CODE_POINTS], template, rivals)


def wide_template() -> str:
    """Every pair of neighbours, every place in and around a contraction, and some longer runs."""
    contexts = [left + "{c}" + right for left, right in product(NEIGHBOURS, repeat=2)]
    for suffix in CONTRACTIONS:
        contexts += [f"{before}{{c}}{suffix}{{c}}" for before in ("", "a", "A", "1", "!", " ")]
        contexts += [f"{before}{suffix}{{c}}b" for before in ("", "a", "A", "1", "!", " ", "{c}")]
        for cut in range(1, len(suffix)):
            contexts += [f"{before}{suffix[:cut]}{{c}}{suffix[cut:]}" for before in ("", "a", "1")]
            contexts += [f"{before}{suffix[:cut]}{{c}}{suffix[cut + 1 :]}" for before in ("", "a")]
    contexts += RUNS
    return "\n0\n".join(["", *dict.fromkeys(contexts), ""])


def find_at_ends(code_points: Iterable[int], rivals: Rivals) -> Iterator[int]:
    """Code points that make a difference as the first or last of a text."""
    for point in code_points:
        if not all(rivals.agree(template.replace("{c}", chr(point))) for template in ENDS):
            yield point


def to_ranges(code_points: Iterable[int]) -> Ranges:
    """Runs as (first, last): `{5, 3, 4, 9}` becomes `((3, 5), (9, 9))`."""
    ranges: list[tuple[int, int]] = []
    for point in sorted(code_points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1] = (ranges[-1][0], point)
        else:
            ranges.append((point, point))
    return tuple(ranges)


def expand(ranges: Ranges) -> set[int]:
    """The code points of some ranges."""
    return {point for first, last in ranges for point in range(first, last + 1)}


def campaign(reference: Reference, pattern: PatternName, *, wide: bool) -> Ranges:
    """All that differs between gigatoken and one reference, for one pattern."""
    found: set[int] = set()
    everything = scalar_values()
    below = [point for point in everything if point < WIDE_LIMIT]
    for right_first in (True, False):
        rivals = Rivals(reference, pattern, made_vocabulary(right_first=right_first))
        found.update(find_differing(everything, SHORT, rivals))
    if wide:
        found.update(find_differing(below, wide_template(), rivals))
        found.update(find_at_ends(below, rivals))
    return to_ranges(found)


def main() -> int:
    parser = argparse.ArgumentParser(description="code points on which gigatoken differs")
    parser.add_argument("--reference", choices=get_args(Reference), help="default: both")
    parser.add_argument("--pattern", choices=get_args(PatternName), help="default: all three")
    parser.add_argument(
        "--wide", action="store_true", help="hundreds of contexts below U+20000 too"
    )
    arguments = parser.parse_args()
    references = [arguments.reference] if arguments.reference else get_args(Reference)
    patterns = [arguments.pattern] if arguments.pattern else get_args(PatternName)
    as_listed = True
    for reference, pattern in product(references, patterns):
        ranges = campaign(reference, pattern, wide=arguments.wide)
        same = ranges == to_ranges(expand(DISAGREEMENTS[reference][pattern]))
        as_listed = as_listed and same
        count = sum(last - first + 1 for first, last in ranges)
        print(
            f"{reference} {pattern}: {count:,} code points, {'as listed' if same else 'NOT AS LISTED'}"
        )
        print(
            "".join(f"    (0x{first:04X}, 0x{last:04X}),\n" for first, last in ranges), flush=True
        )
    return 0 if as_listed else 1


if __name__ == "__main__":
    sys.exit(main())
