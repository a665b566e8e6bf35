"""Words are cut where the patterns cut them: as `regex` does, as `tokenizers` does, at any speed."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise, product
from pathlib import Path
from string import ascii_letters
from types import ModuleType
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from lowtide import native
from lowtide.settings import PatternName
from lowtide.tokenizer import split_words
from lowtide.tokenizer.disagreements import DISAGREEMENTS
from lowtide.tokenizer.patterns import PLAIN_PATTERNS, recognise
from lowtide.tokenizer.split_words import (
    PATTERN_NUMBERS,
    load_classes,
    split_words_reference,
)
from tests.machine_speed import slowness

NATIVE = Path(native.__file__).parent
NAMES: tuple[PatternName, ...] = get_args(PatternName)
EVERY_PATTERN = pytest.mark.parametrize("pattern", NAMES)

ODD_SPACES = "\t\x0b\x0c\r\x85\u00a0\u2003\u2028\u3000"
FRAGMENTS = (
    *("a", "A", "the", "Word", "HTML", "aB", "z" * 70, "Q" * 70),
    *(
        "'",
        "'s",
        "'S",
        "'ll",
        "'lL",
        "'rE",
        "'ve",
        "'x",
        "''",
        "s",
        "l",
        "\u017f",
        "'\u017f",
        "\u212a",
    ),
    *("1", "12", "1234", "1" * 70, "\u00b2", "\u0663", "\u2167"),
    *(" ", "  ", " " * 70, "\n", "\n\n", "\r\n", "\n \n", "\n\t", " \n", *ODD_SPACES),
    *(
        ".",
        "/",
        "//",
        "\n/",
        ";\n/*",
        ".\n//",
        "!=",
        "_",
        "\x00",
        "\u2603",
        "\U0001f600\u200d",
        "\U0010ffff",
    ),
    *("\u0301", "e\u0301", "A\u0301", "\u0301B", "\u20dd", "\u093f"),
    *(
        "\u4e2d",
        "\u4e2dA",
        "\u01c5",
        "\u02b0",
        "\u00e9",
        "\u0416",
        "\u0436",
        "\u00aa",
        "\U0001d400",
    ),
    *(chr(first) for first, _ in DISAGREEMENTS["tokenizers"]["o200k"]),
)
"""All that the patterns ask about, whatever its length in UTF-8, and runs longer than a block of bytes."""
TEXTS = st.builds(
    "{}{}".format,
    st.lists(st.sampled_from(FRAGMENTS) | st.characters(exclude_categories=["Cs"])).map("".join),
    st.sampled_from(["", "if (x) " * 10]),  # within 64 bytes of a text's end no block is read
)
SIGNS = "aA's1 \t\n/."
"""An ASCII character of every kind that any pattern knows."""
MORE_SIGNS = SIGNS + "\u3000\u00e9\u01c5\u4e2d\u0301\u00b2"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSplit:
    """`lt_split_words` of one library."""

    function: Callable[..., int]

    def __call__(self, text: bytes, pattern: PatternName) -> list[int]:
        """Where each word of the bytes ends."""
        return self.some(text, pattern, length=len(text), room=len(text))

    def some(self, buffer: bytes, pattern: PatternName, *, length: int, room: int) -> list[int]:
        """The same for the first bytes of a buffer, and as many words as there is room for."""
        ends = np.empty(room, dtype=np.uint32)
        count = self.function(
            PATTERN_NUMBERS[pattern],
            ctypes.c_char_p(buffer),
            ctypes.c_size_t(length),
            ctypes.c_void_p(load_classes().ctypes.data),
            ctypes.c_void_p(ends.ctypes.data),
            ctypes.c_size_t(room),
        )
        found: list[int] = ends[:count].tolist()
        return found


@pytest.fixture(scope="module", params=[(), ("-U__SSE2__",)], ids=["native", "any_processor"])
def native_split(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> NativeSplit:
    """The native cutter, built as it is for this processor and as it is for any other."""
    library = tmp_path_factory.mktemp("native") / "split_words.so"
    compiler = ["cc", "-O3", "-std=c11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    source = str(NATIVE / "split_words.c")
    subprocess.run([*compiler, *request.param, source, "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).lt_split_words
    function.restype = ctypes.c_size_t
    return NativeSplit(function=function)


def reference_ends(text: str, pattern: PatternName) -> list[int]:
    return [*accumulate(len(word.encode()) for word in split_words_reference(text, pattern))]


@cache
def pre_tokenizer(pattern: PatternName) -> pre_tokenizers.PreTokenizer:
    if pattern == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Split(Regex(PLAIN_PATTERNS[pattern]), "isolated")


def tokenizers_ends(text: str, pattern: PatternName) -> list[int]:
    spans = [span for _, span in pre_tokenizer(pattern).pre_tokenize_str(text)]
    return [*accumulate(len(text[first:end].encode()) for first, end in spans)]


@cache
def bench(name: str) -> ModuleType:
    """A file of `bench/`, which is a command and no package."""
    spec = importlib.util.spec_from_file_location(
        name, Path(__file__).parents[2] / f"bench/{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_plain_pattern_is_a_known_spelling_of_its_name() -> None:
    assert {name: recognise(PLAIN_PATTERNS[name]) for name in NAMES} == {n: n for n in NAMES}
    assert sorted(PATTERN_NUMBERS) == sorted(NAMES)


def test_the_table_holds_what_tokenizers_says_of_every_code_point() -> None:
    found = bench("make_classes").ask_classes()
    assert np.flatnonzero(found != load_classes()).tolist() == []


def test_the_data_file_is_the_one_that_the_table_spells() -> None:
    assert bench("make_classes").spell(load_classes()) == bench("make_classes").PATH.read_text()


@EVERY_PATTERN
@given(text=TEXTS)
def test_the_reference_cuts_like_tokenizers(text: str, pattern: PatternName) -> None:
    assert "".join(split_words_reference(text, pattern)) == text
    assert reference_ends(text, pattern) == tokenizers_ends(text, pattern)


@EVERY_PATTERN
@given(text=TEXTS)
def test_words_are_those_of_the_reference(
    native_split: NativeSplit, text: str, pattern: PatternName
) -> None:
    assert native_split(text.encode(), pattern) == reference_ends(text, pattern)


@EVERY_PATTERN
@given(text=TEXTS)
def test_words_are_those_of_tokenizers(
    native_split: NativeSplit, text: str, pattern: PatternName
) -> None:
    assert native_split(text.encode(), pattern) == tokenizers_ends(text, pattern)


@EVERY_PATTERN
def test_every_five_ascii_characters_are_cut_like_the_reference(
    native_split: NativeSplit, pattern: PatternName
) -> None:
    text = "-".join(map("".join, product(SIGNS, repeat=5)))
    assert native_split(text.encode(), pattern) == reference_ends(text, pattern)


@EVERY_PATTERN
def test_every_four_characters_are_cut_like_the_reference(
    native_split: NativeSplit, pattern: PatternName
) -> None:
    text = "-".join(map("".join, product(MORE_SIGNS, repeat=4)))
    assert native_split(text.encode(), pattern) == reference_ends(text, pattern)


@EVERY_PATTERN
def test_no_contraction_is_missed_and_none_made_up(
    native_split: NativeSplit, pattern: PatternName
) -> None:
    letters = ascii_letters + "\u017f\u212a\u00df."
    for before, behind in product(("x", " ", "\n", ".", "'s", "A"), ("x", " ", "")):
        contexts = (f"{before}'{two}{behind}" for two in map("".join, product(letters, repeat=2)))
        text = "\n".join(contexts)
        assert native_split(text.encode(), pattern) == reference_ends(text, pattern)
        for short in ("'", "'s", "'d", "'r", "'l", "'re", "'LL", "'\u017f"):  # a text's end
            data = (before + short).encode()
            assert native_split(data, pattern) == reference_ends(before + short, pattern)


@pytest.mark.slow
@EVERY_PATTERN
@pytest.mark.parametrize("before", ["", "if (x) " * 9], ids=["alone", "behind_a_block"])
def test_every_four_ascii_characters_end_a_text_like_in_the_reference(
    native_split: NativeSplit, before: str, pattern: PatternName
) -> None:
    for four in product(SIGNS, repeat=4):
        text = before + "".join(four)
        assert native_split(text.encode(), pattern) == reference_ends(text, pattern)


@EVERY_PATTERN
def test_indents_of_any_width_are_cut_alike_wherever_a_block_ends(
    native_split: NativeSplit, pattern: PatternName
) -> None:
    lines = product(range(64), range(0, 70, 3), ("\n", "y", "\u3000\n", "\u3000y"))
    text = "".join("x" * before + "\n" + " " * width + end for before, width, end in lines)
    assert native_split(text.encode(), pattern) == reference_ends(text, pattern)


def borders_and_a_sample() -> Iterator[int]:
    """Code points on both sides of every change of class, and some of the many between."""
    begins = (np.flatnonzero(np.diff(load_classes())) + 1).tolist()
    chosen = {*begins, *(begin - 1 for begin in begins), *range(0, split_words.CODE_POINTS, 211)}
    return (point for point in sorted(chosen) if not 0xD800 <= point <= 0xDFFF)


@EVERY_PATTERN
def test_code_points_of_every_class_are_cut_like_the_reference_in_many_places(
    native_split: NativeSplit, pattern: PatternName
) -> None:
    template = bench("code_points").SHORT
    text = "".join(template.replace("{c}", chr(point)) for point in borders_and_a_sample())
    assert native_split(text.encode(), pattern) == reference_ends(text, pattern)


@EVERY_PATTERN
@given(text=TEXTS, room=st.integers(1, 100))
def test_a_text_cut_in_several_calls_is_cut_alike(
    native_split: NativeSplit, text: str, room: int, pattern: PatternName
) -> None:
    data, at, found = text.encode(), 0, []
    while at < len(data):
        ends = native_split.some(data[at:], pattern, length=len(data) - at, room=room)
        assert 0 < len(ends) <= room
        found += [at + end for end in ends]
        at = found[-1]
    assert found == native_split(data, pattern)


ANY_BYTES = st.binary(max_size=200) | TEXTS.map(str.encode).flatmap(
    lambda data: st.integers(0, len(data)).map(lambda cut_at: data[cut_at:][: len(data) - 2])
)
"""Noise, and texts whose first and last character may be broken."""


@EVERY_PATTERN
@given(data=ANY_BYTES)
def test_bytes_that_are_not_text_are_cut_to_the_last_one(
    native_split: NativeSplit, data: bytes, pattern: PatternName
) -> None:
    ends = [0, *native_split(data, pattern)]
    assert ends[-1] == len(data)
    assert all(left < right for left, right in pairwise(ends))


@EVERY_PATTERN
@given(data=ANY_BYTES)
def test_what_lies_behind_a_text_changes_nothing(
    native_split: NativeSplit, data: bytes, pattern: PatternName
) -> None:
    expected = native_split(data, pattern)
    for behind in (b"a", b"s", b" ", b"\n", b"7", b".", b"\xbf"):
        buffer = data + behind * 80
        found = native_split.some(buffer, pattern, length=len(data), room=len(buffer))
        assert found == expected


MANY = 1_000_000
LONG_RUNS = {
    "letters": "a" * MANY,
    "capitals": "A" * MANY,
    "capitals behind a letter without case": "\u4e2d" + "A" * MANY,
    "capitals behind a mark": "\u0301" + "A" * MANY,
    "marks": "\u0301" * MANY,
    "marks and capitals": "\u0301A" * MANY,
    "letters without case": "\u4e2d" * MANY,
    "blanks": " " * MANY,
    "blanks before a letter": " " * MANY + "a",
    "newlines": "\n" * MANY + "a",
    "newlines and blanks": "\n " * MANY + "a",
    "one newline and blanks": "\n" + " " * MANY + "a",
    "wide spaces": "\u3000" * MANY + "a",
    "digits": "7" * MANY,
    "apostrophes": "'" * MANY,
    "contractions": "'s" * MANY,
    "slashes": "/\n" * MANY,
    "words of every kind": "\u4e2d \n1. \u3000A'\n\n\t\u0301" * (MANY // 50),
}


@EVERY_PATTERN
@pytest.mark.parametrize("run", LONG_RUNS)
def test_time_grows_with_the_text_and_not_faster(
    native_split: NativeSplit, run: str, pattern: PatternName
) -> None:
    data = LONG_RUNS[run].encode()
    start = time.process_time()
    ends = native_split(data, pattern)
    assert ends[-1] == len(data)
    # 20 ms; hours, if every word looked at all that follows
    assert time.process_time() - start < 2 * slowness()
