"""The table counts what a dictionary counts: whatever the text, the marks, the blocks and the memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.errors import DataError, StorageError
from lowtide.settings import PatternName
from lowtide.tokenizer.count_words import (
    LEAST_TABLE_BYTES,
    CountRules,
    WordCounter,
    count_words_reference,
)
from lowtide.tokenizer.word_runs import BUFFER_BYTES, RunRecord, decode_run, encode_run, merge_runs
from lowtide.units import MIB
from tests.tokenizer.training_corpora import few_letter_words, small_texts

PATTERNS: tuple[PatternName, ...] = get_args(PatternName)
EVERY_PATTERN = pytest.mark.parametrize("pattern", PATTERNS)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

TINY_TABLE_BYTES = 1
"""The least table there is: 64 KiB of words longer than two bytes."""
MARK_SETS = (
    (),
    ("<|endoftext|>",),
    ("<|end|>", "<|endoftext|>", "<|end", "<"),
    ("ab", "aba", "abab", "b"),
    ("a",),
    ("\n\n", "\n", " \n"),
    ("the", " the", "e t"),
    ("中", "中国", "é", "\0\0"),
    ("\x00", "<", "|", "a", "b", "\n", " ", "é"),
)
"""Marks that overlap, begin alike, are parts of each other, or begin with many different bytes."""
PIECES = (
    *(mark for marks in MARK_SETS for mark in marks),
    *"ab <|>",
    "end",
    "the cat",
    "abc",
    "\r\n",
)
TEXTS = st.lists(st.sampled_from(PIECES) | small_texts(), max_size=30).map("".join)
ODD_WORDS = st.builds(
    lambda sign, times: sign * times, st.sampled_from(["!", "\0", "!\0"]), st.integers(1, 40)
)
"""Symbols and zeros: words that differ only behind their last eight bytes, or in zeros that end them."""


def rules_for(pattern: PatternName = "gpt2", marks: Sequence[str] = ()) -> CountRules:
    return CountRules(pattern=pattern, marks=tuple(mark.encode() for mark in marks))


def count_all(
    folder: Path,
    blocks: Sequence[bytes],
    rules: CountRules,
    *,
    allowance_bytes: int = LEAST_TABLE_BYTES,
) -> tuple[dict[bytes, int], int]:
    """The words of all blocks, by way of the disk, and how many runs that took."""
    counter = WordCounter(rules, allowance_bytes=allowance_bytes)
    runs: list[RunRecord] = []
    for block in blocks:
        at = 0
        while (at := counter.count(block, at)) < len(block):
            runs.append(counter.spill(folder / f"{len(runs)}.words"))
    runs.append(counter.spill(folder / f"{len(runs)}.words"))
    counter.close()
    whole, _ = merge_runs(folder, runs, "all.words") if len(runs) > 1 else (runs[0], None)
    return decode_run((folder / whole.name).read_bytes()), len(runs)


def distinct_words(count: int, *, length: int, seed: int = 0) -> list[bytes]:
    letters = np.random.default_rng(seed).integers(ord("a"), ord("z"), (count, length), np.uint8)
    return sorted({row.tobytes() for row in letters})


# ── The same words ──────────────────────────────────────────────────────────────────────────────────────


@EVERY_PATTERN
@given(texts=st.lists(TEXTS, max_size=3), marks=st.sampled_from(MARK_SETS))
@in_one_folder
def test_words_are_those_of_the_plain_version(
    tmp_path: Path, texts: list[str], marks: tuple[str, ...], pattern: PatternName
) -> None:
    blocks = [text.encode() for text in texts]
    rules = rules_for(pattern, marks)
    counted, _ = count_all(tmp_path, blocks, rules)
    assert counted == count_words_reference(blocks, rules)


@given(
    text=st.text("ab<|", max_size=60),
    marks=st.lists(st.text("ab<|", min_size=1, max_size=4), max_size=5, unique=True),
)
@in_one_folder
def test_any_marks_end_texts_leftmost_and_longest_first(
    tmp_path: Path, text: str, marks: list[str]
) -> None:
    rules = rules_for("o200k", marks)
    counted, _ = count_all(tmp_path, [text.encode()], rules)
    assert counted == count_words_reference([text.encode()], rules)


@pytest.mark.parametrize(
    ("text", "marks", "words"),
    [
        ("<|end|>", ["<|end|>"], {}),
        ("<|end|><|end|>", ["<|end|>"], {}),
        ("a<|end|>b", ["<|end|>"], {b"a": 1, b"b": 1}),
        ("it<|end|>is<|end", ["<|end|>"], {b"it": 1, b"is": 1, b"<|": 1, b"end": 1}),
        ("xaabay", ["aab", "aba", "a"], {b"x": 1, b"y": 1}),
        ("abab", ["aba"], {b"b": 1}),
        ("ba", ["a\0"], {b"ba": 1}),  # the byte behind a text is a zero, and not of the text
        ("  a<|>  b", ["<|>"], {b" ": 2, b" a": 1, b" b": 1}),
    ],
)
def test_marks_belong_to_no_word(
    tmp_path: Path, text: str, marks: list[str], words: dict[bytes, int]
) -> None:
    assert count_all(tmp_path, [text.encode()], rules_for("gpt2", marks))[0] == words


@given(words=st.lists(ODD_WORDS | few_letter_words(longest=40).map(bytes.decode), max_size=60))
@in_one_folder
def test_words_that_are_nearly_alike_are_counted_apart(tmp_path: Path, words: list[str]) -> None:
    block = " ".join(words).encode()
    counted, _ = count_all(tmp_path, [block], rules_for())
    assert counted == count_words_reference([block], rules_for())


@EVERY_PATTERN
@given(block=st.binary(max_size=200))
@in_one_folder
def test_bytes_that_are_not_text_are_all_counted(
    tmp_path: Path, block: bytes, pattern: PatternName
) -> None:
    counted, _ = count_all(tmp_path, [block], rules_for(pattern))
    letters: Counter[int] = Counter()
    for word, times in counted.items():
        letters.update({byte: times * often for byte, often in Counter(word).items()})
    assert letters == Counter(block)


@EVERY_PATTERN
def test_a_spilled_table_is_the_run_of_the_plain_encoder(
    tmp_path: Path, pattern: PatternName
) -> None:
    """Every word of one and two bytes, which are counted apart, among longer ones that begin with them."""
    text = "".join(chr(first) + chr(second) + "\n" for first in range(128) for second in range(128))
    blocks = [text.encode(), (" the cat's 1234 ÄÖ" * 20).encode(), text.encode()]
    counter = WordCounter(rules_for(pattern), allowance_bytes=LEAST_TABLE_BYTES)
    for block in blocks:
        assert counter.count(block) == len(block)
    expected = count_words_reference(blocks, rules_for(pattern))
    assert counter.distinct_words == len(expected)
    counter.spill(tmp_path / "a.words")
    assert (tmp_path / "a.words").read_bytes() == encode_run(expected)
    assert counter.distinct_words == 0
    counter.close()


@EVERY_PATTERN
@given(texts=st.lists(TEXTS, max_size=6), order=st.randoms(use_true_random=False))
@in_one_folder
def test_blocks_cut_at_ends_of_documents_give_the_same(
    tmp_path: Path, texts: list[str], order: Random, pattern: PatternName
) -> None:
    documents = [text.replace("<", "").encode() + b"<|end|>" for text in texts]
    rules = rules_for(pattern, ["<|end|>"])
    whole, _ = count_all(tmp_path, [b"".join(documents)], rules)
    order.shuffle(documents)
    cuts = sorted(order.choices(range(len(documents) + 1), k=2))
    blocks = [b"".join(documents[a:b]) for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    assert count_all(tmp_path, blocks, rules)[0] == whole


# ── A table that is full ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("count", "length", "allowance_bytes"),
    [(70_000, 5, 4 * MIB), (8_000, 7, TINY_TABLE_BYTES), (12, 30_000, TINY_TABLE_BYTES)],
    ids=["no slots left", "no bytes left", "two words at a time"],
)
def test_a_full_table_goes_on_in_the_middle_of_a_block(
    tmp_path: Path, count: int, length: int, allowance_bytes: int
) -> None:
    words = distinct_words(count, length=length)
    block = b"|".join(word + (b"||" if number % 5 else b"") for number, word in enumerate(words))
    block += b"<|end|>" + block[: len(block) // 3]
    rules = rules_for("gpt2", ["<|end|>", "||"])
    counted, runs = count_all(tmp_path, [block], rules, allowance_bytes=allowance_bytes)
    assert runs > 2
    assert counted == count_words_reference([block], rules)


def around(long_word: bytes) -> bytes:
    return b"many short words, many" + long_word + b" and more"


def words_around(*long_words: bytes) -> dict[bytes, int]:
    return count_words_reference([around(b"")], rules_for()) + Counter(long_words)


def test_a_word_longer_than_the_table_is_refused_with_a_remedy_that_works(tmp_path: Path) -> None:
    word = b" " + b"x" * (5 * MIB)
    with pytest.raises(DataError, match=r"longer than a table of 6\.0 MiB") as caught:
        count_all(tmp_path, [around(word)], rules_for())
    advice = re.search(r"`--memory` that is (\d+)MiB larger", caught.value.remedy)
    assert advice
    larger_bytes = LEAST_TABLE_BYTES + int(advice[1]) * MIB
    counted, _ = count_all(tmp_path, [around(word)], rules_for(), allowance_bytes=larger_bytes)
    assert counted == words_around(word)
    assert "white space" in caught.value.remedy
    parts = [b" " + b"x" * (2 * MIB), b" " + b"x" * (3 * MIB // 2)]
    counted, _ = count_all(tmp_path, [around(b"".join(parts))], rules_for())
    assert counted == words_around(*parts)


def test_a_word_that_just_fits_into_a_table_of_its_own_is_counted(tmp_path: Path) -> None:
    """What came before it goes to disk first."""
    word = b" " + b"x" * (65_536 - 12 - 1)
    counted, runs = count_all(
        tmp_path, [around(word)], rules_for(), allowance_bytes=TINY_TABLE_BYTES
    )
    assert runs == 3
    assert counted == words_around(word)


@linux_only
def test_what_a_full_disk_did_not_take_is_still_there(tmp_path: Path) -> None:
    """And a text that is counted before it could be written waits its turn, as with any full table."""
    counter = WordCounter(rules_for(), allowance_bytes=LEAST_TABLE_BYTES)
    counter.count(b"the cat is the cat")
    (tmp_path / f".a.words.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="ENOSPC"):
        counter.spill(tmp_path / "a.words")
    assert list(tmp_path.iterdir()) == []
    assert counter.count(b"is it the cat") == 0
    counter.spill(tmp_path / "a.words")
    assert counter.count(b"is it the cat") == len(b"is it the cat")
    counter.spill(tmp_path / "b.words")
    first, second = (decode_run((tmp_path / name).read_bytes()) for name in ("a.words", "b.words"))
    assert first == count_words_reference([b"the cat is the cat"], rules_for())
    assert second == count_words_reference([b"is it the cat"], rules_for())
    counter.close()


# ── Threads and memory ──────────────────────────────────────────────────────────────────────────────────


def test_threads_with_tables_of_their_own_do_not_interfere(tmp_path: Path) -> None:
    blocks = [b" ".join(distinct_words(20_000, length=5, seed=seed)) for seed in range(6)]
    folders = [tmp_path / str(number) for number in range(len(blocks))]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(4) as pool:
        counted = list(pool.map(lambda f, b: count_all(f, [b], rules_for())[0], folders, blocks))
    assert counted == [count_words_reference([block], rules_for()) for block in blocks]


def test_closing_twice_is_closing_once() -> None:
    counter = WordCounter(rules_for(), allowance_bytes=LEAST_TABLE_BYTES)
    counter.count(b"the cat")
    counter.close()
    counter.close()


FILL_A_TABLE = """
import sys
from pathlib import Path
from lowtide.memory.meter import PeakMeter, private_bytes
from lowtide.tokenizer.count_words import CountRules, WordCounter
folder, allowance_bytes = Path(sys.argv[1]), int(sys.argv[2])
block = (folder / "block").read_bytes()
counter = WordCounter(CountRules(pattern="gpt2", marks=()), allowance_bytes=allowance_bytes)
before = private_bytes()
with PeakMeter(interval_seconds=0.001) as meter:
    assert counter.count(block) < len(block)
    counter.spill(folder / "a.words")
print(meter.peak.private_bytes - before)
"""


@linux_only
@pytest.mark.parametrize("length", [6, 20, 400], ids=["short", "longer", "long"])
def test_a_table_stays_within_its_allowance(tmp_path: Path, length: int) -> None:
    """But for a moment, while the slots are doubled, old and new ones are there: a sixth more at most.
    Words of 20 letters are those that fill the rest of the table just then."""
    allowance_bytes = 12 * MIB
    words = distinct_words(15 * MIB // (length + 16), length=length)
    (tmp_path / "block").write_bytes(b"\n".join(words))
    command = [sys.executable, "-c", FILL_A_TABLE, str(tmp_path), str(allowance_bytes)]
    used = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert allowance_bytes / 2 < used < allowance_bytes * 7 / 6 + 2 * BUFFER_BYTES
