"""A cut is safe when both halves, split alone, give the pre-tokens of the whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
import regex
import tiktoken_ext.openai_public as openai_public
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.source import safe_cuts
from lowtide.source.safe_cuts import CutRule, Pattern, last_safe_cut

CLASSIC_GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CLASSIC_CL100K = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"""
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN2 = CLASSIC_CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
CLASSIC_O200K = "|".join(
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    ]
)


def _tiktoken_o200k() -> str:
    """The pattern as tiktoken spells it, without fetching the vocabulary it belongs to."""
    constants = openai_public.o200k_base.__code__.co_consts
    return "|".join(text for text in _strings(constants) if "\\" in text)


def _tiktoken_cl100k() -> str:
    constants = openai_public.cl100k_base.__code__.co_consts
    return next(text for text in _strings(constants) if "\\p{L}" in text)


def _strings(constants: object) -> Iterator[str]:
    if isinstance(constants, str):
        yield constants
    elif isinstance(constants, tuple):
        for constant in constants:
            yield from _strings(constant)


SPELLINGS: list[tuple[Pattern, str]] = [
    ("gpt2", openai_public.r50k_pat_str),
    ("gpt2", CLASSIC_GPT2),
    ("cl100k", _tiktoken_cl100k()),
    ("cl100k", CLASSIC_CL100K),
    ("cl100k", QWEN2),
    ("o200k", _tiktoken_o200k()),
    ("o200k", CLASSIC_O200K),
]
EXPRESSIONS = [(pattern, regex.compile(text)) for pattern, text in SPELLINGS]

ALPHABET = (
    "aZés1٣½' \n\r\t\u00a0\u0085\u180e\u200b\u2028\u3000\ufeff\u0301\u0bcdー中あア。，.!/_-\"\x00\x1c\x7f"
    "😀\U0001f1e9\u200dſKǅʰ\ufffd"
)
WORDS = st.sampled_from(
    [
        "'s",
        "'ll",
        "'Re",
        "don't",
        "  ",
        "\n\n",
        " \n ",
        "\r\n",
        "12345",
        "a,b",
        "!\n",
        "//",
        "?!/\n",
    ]
)
TEXTS = st.lists(st.sampled_from(ALPHABET) | WORDS, max_size=24).map("".join)


def all_cuts(data: bytes, rule: CutRule) -> list[int]:
    """Every safe cut, found by asking for the last one in ever shorter beginnings."""
    found = {last_safe_cut(data[:end], rule) for end in range(2, len(data) + 1)}
    return sorted(found - {0})


def assert_cut_is_exact(expression: regex.Pattern[str], text: str, cut_bytes: int) -> None:
    """The plain reference: split the whole, split the halves, compare."""
    data = text.encode()
    left, right = data[:cut_bytes].decode(), data[cut_bytes:].decode()
    whole = expression.findall(text)
    assert expression.findall(left) + expression.findall(right) == whole, (left, right)


@pytest.mark.parametrize(("pattern", "expression"), EXPRESSIONS, ids=range(len(EXPRESSIONS)))
@settings(max_examples=500)
@given(text=TEXTS)
def test_halves_give_the_pre_tokens_of_the_whole(
    pattern: Pattern, expression: regex.Pattern[str], text: str
) -> None:
    for cut in all_cuts(text.encode(), CutRule(pattern=pattern)):
        assert_cut_is_exact(expression, text, cut)


def code_points(start: int, stop: int) -> Iterator[str]:
    """All characters of a range; of the planes whose characters are all alike, a sample.

    Planes 2 and 3 hold ideographs, 4 to 13 nothing, 15 and 16 are private.
    """
    for code in range(start, stop):
        is_alike = 0x20000 <= code < 0xE0000 or code >= 0xF0000
        if not 0xD800 <= code < 0xE000 and (not is_alike or code % 61 == 0):
            yield chr(code)


def claimed_cuts(data: bytes, rule: CutRule) -> list[int]:
    """All safe cuts of a text at once, by the parts `last_safe_cut` is made of."""
    candidates = safe_cuts._candidates(data, safe_cuts._pair_table(rule.pattern), 1, len(data))
    return [cut for cut in reversed(candidates) if safe_cuts._holds(data, cut, rule.pattern)]


FULL_SURROUNDINGS = "{c} {c}\t{c}\n{c}\r{c}1{c}.{c}。{c}a{c}'s{c}/ \n{c}!\n{c}"
SHORT_SURROUNDINGS = "{c} {c}\n{c}1{c}。\n{c}a"


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k"])
def test_every_code_point_beside_every_kind_of_cut(pattern: Pattern) -> None:
    expressions = [expression for name, expression in EXPRESSIONS if name == pattern]
    for start in range(0, sys.maxunicode + 1, 4096):
        is_odd = start < 0x4000  # where white space, marks and cased letters live
        surroundings = FULL_SURROUNDINGS if is_odd else SHORT_SURROUNDINGS
        text = "".join(surroundings.format(c=c) for c in code_points(start, start + 4096))
        data = text.encode()
        borders = [0, *claimed_cuts(data, CutRule(pattern=pattern)), len(data)]
        pieces = [data[left:right].decode() for left, right in pairwise(borders)]
        for expression in expressions if is_odd else expressions[:1]:
            apart = [token for piece in pieces for token in expression.findall(piece)]
            assert apart == expression.findall(text), hex(start)


@given(text=TEXTS, pattern=st.sampled_from(["gpt2", "cl100k", "o200k"]))
def test_the_last_cut_is_the_last_of_all(text: str, pattern: Pattern) -> None:
    rule, data = CutRule(pattern=pattern), text.encode()
    cuts = claimed_cuts(data, rule) if len(data) > 1 else []
    assert last_safe_cut(data, rule) == max(cuts, default=0)
    assert last_safe_cut(memoryview(data), rule) == max(cuts, default=0)
    for lowest in range(1, len(data) + 2):
        expected = max((cut for cut in cuts if cut >= lowest), default=0)
        assert last_safe_cut(data, rule, at_least=lowest) == expected


@pytest.mark.parametrize(
    ("text", "pattern", "cut"),
    [
        ("two words", "gpt2", 3),
        ("two words", "none", 0),
        ("letters", "gpt2", 0),
        ("a   ", "o200k", 1),
        ("end.\nNext", "gpt2", 4),
        ("end.\nNext", "cl100k", 5),
        ("end!\n/x", "o200k", 3),
        ("it's", "o200k", 0),
        ("中文，中", "cl100k", 6),
        ("a\u00a0 b", "gpt2", 0),
        ("", "gpt2", 0),
        ("x", "gpt2", 0),
    ],
)
def test_worked_examples(text: str, pattern: Pattern, cut: int) -> None:
    assert last_safe_cut(text.encode(), CutRule(pattern=pattern)) == cut


def test_a_text_without_a_cut_is_searched_to_its_start() -> None:
    rule = CutRule(pattern="gpt2")
    assert last_safe_cut(b"a " + b"b" * 100_000, rule) == 1
    for length in range(240, 800):  # whichever way the only cut lies to the windows of the search
        assert last_safe_cut(b"aa " + b"b" * length, rule) == 2
    assert last_safe_cut(b" " * 100_000 + b"a", rule) == 0


TOKENS = st.lists(st.text("ab <|>", min_size=1, max_size=4).map(str.encode), max_size=4)


@settings(max_examples=300)
@given(text=st.text("ab <|>1", max_size=20), tokens=TOKENS, rest=st.text("ab <|>1", max_size=6))
def test_no_cut_falls_into_an_added_token(text: str, tokens: list[bytes], rest: str) -> None:
    """Not even into one whose end is not in sight yet."""
    data, whole = text.encode(), (text + rest).encode()
    for cut in all_cuts(data, CutRule(pattern="gpt2", unsplittable=tuple(tokens))):
        for token in tokens:
            starts = range(max(0, cut - len(token) + 1), cut)
            assert not any(whole.startswith(token, start) for start in starts)


def test_a_cut_beside_an_added_token_is_found() -> None:
    rule = CutRule(pattern="gpt2", unsplittable=(b"<|end of text|>",))
    assert last_safe_cut(b"one<|end of text|> two", rule) == 18
    assert last_safe_cut(b"one <|end of text|>", rule) == 3
    assert last_safe_cut(b"one <|end of", rule) == 3
    assert last_safe_cut(b"one <|end or", rule) == 9
