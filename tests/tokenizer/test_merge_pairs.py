"""The fast learner takes the steps of the plain one, however little memory its tables, lists and cells have."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lowtide.errors import DoesNotFitError, StorageError, VerificationError
from lowtide.settings import Ties
from lowtide.tokenizer import merge_pairs
from lowtide.tokenizer.byte_pairs import bytes_in_order
from lowtide.tokenizer.merge_pairs import (
    STEP,
    MergeAllowances,
    MergeLearner,
    MergeSettings,
    Steps,
    read_classes,
    spend_on_merges,
)
from lowtide.tokenizer.reference_train import Step, merge_pair, train_reference
from lowtide.tokenizer.word_runs import RunRecord, encode_run, map_run
from lowtide.units import MIB
from tests.machine_speed import slowness
from tests.tokenizer.test_word_runs import DAMAGED, flip_every_bit, largest_file, linux_only
from tests.tokenizer.training_corpora import (
    HARD_TABLES,
    HUGE_COUNTS,
    SMALL_COUNTS,
    WordCounts,
    word_counts,
)

RULES: tuple[Ties, ...] = get_args(Ties)
BOTH_RULES = pytest.mark.parametrize("ties", RULES)
NOT_YET = pytest.mark.xfail(
    strict=True, reason="ties by bytes spell every token out, outside of the allowance"
)
EVERY_HARD_TABLE = pytest.mark.parametrize("name", HARD_TABLES)
ORDINARY_BYTES = 12 * MIB
"""Enough for small tables: all words and pairs at once."""
A_MILLION = 1 << 20
TABLES = word_counts(counts=SMALL_COUNTS | HUGE_COUNTS, longest=300)
MERGES = st.sampled_from([0, 1, 2, 10, 60, 300])
MIN_FREQUENCIES = st.sampled_from([0, 1, 2, 5, 2**33])
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Far less room than any allowance would give: what is rare otherwise happens all the time."""

    bits: int = 16
    in_file: bool = False
    pair_slots: int = 64
    places_a_cell: float = 1.0

    def list_room(self, cell_count: int) -> int:
        return int(cell_count * self.places_a_cell) + 8

    def spend(self, cell_count: int, symbol_count: int, *_: int, **__: object) -> MergeAllowances:
        return MergeAllowances(
            bits=self.bits if symbol_count < 225 else max(16, self.bits),
            cells_in_file=self.in_file,
            pair_slots=self.pair_slots,
            list_room=self.list_room(cell_count),
            needs={},
        )

    def spend_with_file(self, cell_count: int, *_: int, **__: object) -> MergeAllowances:
        return replace(self.spend(cell_count, 256), cells_in_file=True)


SPENDINGS = (
    Spending(bits=8),
    Spending(bits=8, in_file=True, pair_slots=1024, places_a_cell=3),
    Spending(bits=16, pair_slots=256),
    Spending(bits=16, in_file=True, places_a_cell=1.5),
    Spending(bits=32),
    Spending(bits=32, pair_slots=1024, places_a_cell=2),
)
ANY_SPENDING = st.builds(
    Spending,
    bits=st.sampled_from([8, 16, 32]),
    in_file=st.booleans(),
    pair_slots=st.sampled_from([16, 64, 256]),
    places_a_cell=st.sampled_from([0.05, 0.3, 0.6, 1.0, 1.5]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Everything that a learner says."""

    steps: Steps
    is_exhausted: bool
    recounts: int
    allowances: MergeAllowances
    """Those at the end."""

    @property
    def choices(self) -> list[tuple[int, int, int]]:
        columns = (self.steps[name].tolist() for name in ("left", "right", "count"))
        return list(zip(*columns, strict=True))

    @property
    def effects(self) -> list[tuple[int, int]]:
        columns = (self.steps[name].tolist() for name in ("joined", "whole"))
        return list(zip(*columns, strict=True))


def learn(
    table: Mapping[bytes, int],
    folder: Path,
    wanted: MergeSettings,
    *,
    allowance_bytes: int = ORDINARY_BYTES,
    stops: Sequence[int] = (),
) -> Learnt:
    """All merges, learnt with a pause at each of the stops."""
    run = np.frombuffer(encode_run({word: table[word] for word in table if word}), np.uint8)
    classes = read_classes(run)
    with MergeLearner(
        run, classes, wanted, allowance_bytes=allowance_bytes, folder=folder
    ) as learner:
        slices = [np.empty(0, STEP)]
        for stop in (*stops, wanted.most_merges):
            slices += learner.learn(stop)
            assert learner.merges == sum(map(len, slices))
            assert learner.merges == stop or learner.is_exhausted
        return Learnt(
            steps=np.concatenate(slices),
            is_exhausted=learner.is_exhausted,
            recounts=learner.recounts,
            allowances=learner.allowances,
        )


@contextmanager
def spending(how: Spending) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_pairs, "spend_on_merges", how.spend)
        patch.setattr(merge_pairs, "spend_with_file", how.spend_with_file)
        yield


def reference(table: Mapping[bytes, int], wanted: MergeSettings) -> list[Step]:
    return train_reference(
        table,
        vocabulary_size=256 + wanted.most_merges,
        special_count=0,
        min_frequency=wanted.min_frequency,
        ties=wanted.ties,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a step does to the words, found by doing it."""

    joined: int
    whole: int
    places: int
    """Where the pair stood."""
    cells: int
    """What the words had filled, one cell a token."""


def replay(table: Mapping[bytes, int], steps: Sequence[Step]) -> list[Effect]:
    ids = {byte: number for number, byte in enumerate(bytes_in_order())}
    words = [([ids[byte] for byte in word], count) for word, count in table.items()]
    effects = []
    for left, right, made, _ in steps:
        joined = whole = places = 0
        cells = 1 + sum(len(word) + 1 for word, _ in words if len(word) > 1)
        for number, (word, count) in enumerate(words):
            if left in word:
                merged = merge_pair(word, (left, right), made)
                places += sum(pair == (left, right) for pair in pairwise(word))
                joined += count * (len(word) - len(merged))
                whole += count * (len(merged) == 1 < len(word))
                words[number] = merged, count
        effects.append(Effect(joined=joined, whole=whole, places=places, cells=cells))
    return effects


def assert_equal(learnt: Learnt, table: Mapping[bytes, int], wanted: MergeSettings) -> None:
    steps = reference(table, wanted)
    assert learnt.choices == [(step.left, step.right, step.count) for step in steps]
    assert learnt.effects == [(effect.joined, effect.whole) for effect in replay(table, steps)]
    assert learnt.is_exhausted == (len(steps) < wanted.most_merges)


# ── The same steps ──────────────────────────────────────────────────────────────────────────────────────


@BOTH_RULES
@given(table=TABLES, most_merges=MERGES, min_frequency=MIN_FREQUENCIES)
@in_one_folder
def test_steps_and_what_they_did_are_those_of_the_plain_trainer(
    tmp_path: Path, table: WordCounts, most_merges: int, min_frequency: int, ties: Ties
) -> None:
    wanted = MergeSettings(most_merges=most_merges, min_frequency=min_frequency, ties=ties)
    assert_equal(learn(table, tmp_path, wanted), table, wanted)


@BOTH_RULES
@EVERY_HARD_TABLE
def test_hard_tables_give_the_same_steps_with_any_memory(
    tmp_path: Path, name: str, ties: Ties
) -> None:
    wanted = MergeSettings(most_merges=400, ties=ties)
    learnt = learn(HARD_TABLES[name], tmp_path, wanted)
    assert_equal(learnt, HARD_TABLES[name], wanted)
    for how in SPENDINGS:
        with spending(how):
            again = learn(HARD_TABLES[name], tmp_path, wanted)
        assert again.steps.tolist() == learnt.steps.tolist()
        assert again.is_exhausted == learnt.is_exhausted


@BOTH_RULES
@example(  # here, lists of pairs that are watched have to make room for others
    table={b"bc": 2, b"dgfdaabacedcf": 2},
    how=Spending(pair_slots=256, places_a_cell=0.7),
    most_merges=100,
    min_frequency=1,
)
@example(
    table={b"dd": 5, b"inmcfpgionnfihcmdhk": 7},
    how=Spending(pair_slots=1024, places_a_cell=0.9),
    most_merges=100,
    min_frequency=1,
)
@given(table=TABLES, how=ANY_SPENDING, most_merges=MERGES, min_frequency=MIN_FREQUENCIES)
@in_one_folder
def test_too_little_memory_is_refused_and_never_gives_other_steps(
    tmp_path: Path,
    table: WordCounts,
    how: Spending,
    most_merges: int,
    min_frequency: int,
    ties: Ties,
) -> None:
    """Refused is only a pair that stands at more places than there is room for."""
    wanted = MergeSettings(most_merges=most_merges, min_frequency=min_frequency, ties=ties)
    try:
        with spending(how):
            learnt = learn(table, tmp_path, wanted)
    except DoesNotFitError:
        effects = replay(table, reference(table, wanted))
        assert any(effect.places > how.list_room(effect.cells) for effect in effects)
    else:
        assert_equal(learnt, table, wanted)


def test_little_memory_means_that_pairs_are_recounted(tmp_path: Path) -> None:
    table = {bytes(letters): letters[0] for letters in product(b"abcdef", b"ghijkl", b"mno")}
    wanted = MergeSettings(most_merges=100)
    assert learn(table, tmp_path, wanted).recounts == 1
    with spending(Spending(pair_slots=16)):
        assert learn(table, tmp_path, wanted).recounts > 5


@BOTH_RULES
@given(table=TABLES, stops=st.lists(st.integers(0, 60), max_size=3), how=st.sampled_from(SPENDINGS))
@in_one_folder
def test_learning_in_several_calls_is_learning_in_one(
    tmp_path: Path, table: WordCounts, stops: list[int], how: Spending, ties: Ties
) -> None:
    wanted = MergeSettings(most_merges=60, ties=ties)
    with spending(how):
        paused = learn(table, tmp_path, wanted, stops=sorted(stops))
    assert paused.steps.tolist() == learn(table, tmp_path, wanted).steps.tolist()


# ── Words and counts of any size ────────────────────────────────────────────────────────────────────────


@BOTH_RULES
@pytest.mark.parametrize("times", [2**33, 2**41 + 1])
def test_counts_beyond_any_corpus_give_the_steps_of_small_ones(
    tmp_path: Path, times: int, ties: Ties
) -> None:
    for table in HARD_TABLES.values():
        wanted = MergeSettings(most_merges=50, ties=ties)
        small = learn(table, tmp_path, wanted)
        large = learn({word: table[word] * times for word in table}, tmp_path, wanted)
        assert large.choices == [(left, right, n * times) for left, right, n in small.choices]
        assert large.effects == [(joined * times, n * times) for joined, n in small.effects]


def long_words() -> dict[str, bytes]:
    shorter, fibonacci = b"a", b"ab"
    while len(fibonacci) < A_MILLION:
        shorter, fibonacci = fibonacci, fibonacci + shorter
    random = np.random.default_rng(0)
    return {
        "a run": b"a" * A_MILLION,
        "a run of odd length": b"a" * (A_MILLION - 1),
        "a period": b"ab" * (A_MILLION // 2),
        "fibonacci": fibonacci[:A_MILLION],
        "two letters": random.choice(np.frombuffer(b"ab", np.uint8), A_MILLION).tobytes(),
        "any bytes": random.integers(0, 256, A_MILLION, np.uint8).tobytes(),
    }


def merge_array(word: npt.NDArray[np.int64], left: int, right: int) -> npt.NDArray[np.bool_]:
    """Where the pair is merged: of a run of one token, every other place from its beginning on."""
    found = np.append((word[:-1] == left) & (word[1:] == right), False)
    begins = np.flatnonzero(found & ~np.append(False, found[:-1]))
    places = np.flatnonzero(found)
    run_begins = begins[np.searchsorted(begins, places, "right") - 1]
    merged = np.zeros(len(word), np.bool_)
    merged[places[(places - run_begins) % 2 == 0]] = True
    return merged


def train_on_one_word(text: bytes, merges: int) -> list[tuple[int, int, int]]:
    """The plain trainer again, for a word that it would take minutes for: all pairs counted for every step."""
    ids = np.argsort(np.frombuffer(bytes(bytes_in_order()), np.uint8))
    word = ids[np.frombuffer(text, np.uint8)]
    steps: list[tuple[int, int, int]] = []
    while len(steps) < merges and len(word) > 1:
        pairs, counts = np.unique(word[:-1] << 32 | word[1:], return_counts=True)
        best = int(counts.argmax())  # the first of equals is the smallest pair
        left, right = int(pairs[best]) >> 32, int(pairs[best]) & 0xFFFFFFFF
        merged = merge_array(word, left, right)
        word[merged] = 256 + len(steps)
        word = word[~np.append(False, merged[:-1])]
        steps.append((left, right, int(counts[best])))
    return steps


@pytest.mark.slow
@pytest.mark.parametrize(("name", "word"), long_words().items(), ids=long_words().keys())
def test_a_word_of_a_million_bytes_is_learnt_from_in_no_time(
    tmp_path: Path, name: str, word: bytes
) -> None:
    """Its tokens span one cell, some, thousands and all of them, in cells of every width."""
    expected = train_on_one_word(word, 25)
    for bits, in_file in ((8, False), (16, False), (32, True)):
        started = time.process_time()
        with spending(Spending(bits=bits, in_file=in_file, pair_slots=1 << 16)):
            learnt = learn({word: 3}, tmp_path, MergeSettings(most_merges=25))
        assert time.process_time() - started < 5 * slowness()
        assert learnt.choices == [(left, right, 3 * count) for left, right, count in expected]


@BOTH_RULES
def test_a_run_has_no_ties_and_its_tokens_are_as_long_as_it(tmp_path: Path, ties: Ties) -> None:
    learnt = learn({b"a" * A_MILLION: 1}, tmp_path, MergeSettings(most_merges=30, ties=ties))
    assert [count for *_, count in learnt.choices] == [2**power - 1 for power in range(20, 0, -1)]
    assert learnt.effects == [(2**power, power == 0) for power in range(19, -1, -1)]
    assert learnt.is_exhausted


# ── What is read ────────────────────────────────────────────────────────────────────────────────────────


@given(st.dictionaries(st.binary(min_size=1, max_size=5), st.integers(1, 5) | HUGE_COUNTS))
def test_classes_are_the_words_by_their_counts_the_highest_first(table: WordCounts) -> None:
    paired = {word: count for word, count in table.items() if len(word) > 1}
    classes = read_classes(np.frombuffer(encode_run(table), np.uint8))
    assert classes.counts.tolist() == sorted(set(paired.values()), reverse=True)
    words = Counter(paired.values())
    assert classes.words.tolist() == [words[count] for count in classes.counts.tolist()]
    assert classes.words_with_pairs == sum(paired.values())
    assert classes.cell_count == 1 + sum(len(word) + 1 for word in paired)
    letters = set(b"".join(paired))
    assert classes.alphabet == bytes(byte for byte in bytes_in_order() if byte in letters)


def test_every_word_may_have_a_count_of_its_own(tmp_path: Path) -> None:
    table = {b"%04d" % number: 1 + number * 7 % 5000 for number in range(5000)}
    wanted = MergeSettings(most_merges=10)
    assert_equal(learn(table, tmp_path, wanted), table, wanted)


@pytest.mark.parametrize("table", [{}, {b"a": 3}, {b"a": 1, b"b": 2}], ids=str)
def test_words_without_pairs_teach_nothing(tmp_path: Path, table: WordCounts) -> None:
    learnt = learn(table, tmp_path, MergeSettings(most_merges=5))
    assert learnt.choices == []
    assert learnt.is_exhausted


OUT_OF_ORDER = {"words in the wrong order", "a word behind its beginning", "a word twice"}
"""A learner does not mind; who merges runs does."""


@pytest.mark.parametrize("damage", [name for name in DAMAGED if name not in OUT_OF_ORDER])
def test_a_damaged_run_is_refused(damage: str) -> None:
    with pytest.raises(VerificationError) as caught:
        read_classes(np.frombuffer(DAMAGED[damage], np.uint8))
    assert "--restart" in caught.value.remedy


@pytest.mark.parametrize(
    "table",
    [{b"ab": 2**63}, {b"ab": 2**64 - 1, b"c" * 5000: 3}, {b"ab": 2**62, b"abab": 2**62}],
    ids=["negative", "more than negative", "negative together"],
)
def test_counts_that_cannot_be_added_up_are_refused(table: WordCounts) -> None:
    with pytest.raises(VerificationError):
        read_classes(np.frombuffer(encode_run(table), np.uint8))


def test_no_bit_that_flips_makes_learning_crash(tmp_path: Path) -> None:
    for run in flip_every_bit(encode_run({b"abab": 300, b"abc": 1, b"b" * 9: 2**20, b"zz": 5})):
        words = np.frombuffer(run, np.uint8)
        try:
            classes = read_classes(words)
        except VerificationError:
            continue
        wanted = MergeSettings(most_merges=9)
        with MergeLearner(
            words, classes, wanted, allowance_bytes=ORDINARY_BYTES, folder=tmp_path
        ) as learner:
            counts = [count for steps in learner.learn(9) for count in steps["count"].tolist()]
        assert counts == sorted(counts, reverse=True)


COUNTED = encode_run({b"abab": 300, b"abc": 1, b"zz": 5})
NO_PAIRS = b"\1\xac\2a" * 4
CHANGED_SINCE = {
    "a longer word": (COUNTED, encode_run({b"ababab": 300, b"q": 1, b"zz": 5})),
    "a word for three": (COUNTED, encode_run({b"ab" * 5: 300, b"q": 1})),
    "a count that none had": (COUNTED, COUNTED.replace(b"\xac\x02", b"\xad\x02")),
    "counts changed places": (COUNTED, encode_run({b"abab": 1, b"abc": 300, b"zz": 5})),
    "a byte that no word had": (COUNTED, COUNTED.replace(b"zz", b"zy")),
    "one word less": (COUNTED, encode_run({b"abab": 300, b"abc": 1, b"q": 300})),
    "no words": (COUNTED, NO_PAIRS),
    "there were none": (NO_PAIRS, COUNTED),
    "a length beyond the end": (COUNTED, b"\xff\xff\x7f" + COUNTED[3:]),
}


@pytest.mark.parametrize("change", CHANGED_SINCE)
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_words_that_change_after_they_were_counted_are_refused(
    tmp_path: Path, change: str, bits: int
) -> None:
    """The file is mapped: what was counted need not be what is read the second time."""
    path, (counted, changed) = tmp_path / "words.run", CHANGED_SINCE[change]
    assert len(counted) == len(changed)
    path.write_bytes(counted)
    wanted = MergeSettings(most_merges=9)
    record = RunRecord(name=path.name, size_bytes=len(counted), digest="")
    with map_run(tmp_path, record) as words, spending(Spending(bits=bits)):
        classes = read_classes(words)
        with path.open("r+b") as file:
            file.write(changed)
        with pytest.raises(VerificationError) as caught:
            MergeLearner(words, classes, wanted, allowance_bytes=ORDINARY_BYTES, folder=tmp_path)
    assert "--restart" in caught.value.remedy


# ── Allowances ──────────────────────────────────────────────────────────────────────────────────────────


def advised_bytes(refused: DoesNotFitError) -> int:
    advice = re.search(r"`--memory` that is (\d+)MiB larger", refused.remedy)
    assert advice
    return int(advice[1]) * MIB


CELLS = st.integers(1, 2000) | st.integers(1, 2**32 - 1)


@settings(max_examples=300)
@given(CELLS, st.integers(1, 256), st.integers(0, 1 << 24), st.integers(1, 2**33))
def test_what_is_spent_is_within_the_allowance_or_the_remedy_helps(
    cell_count: int, symbol_count: int, merges: int, allowance_bytes: int
) -> None:
    most_symbols = symbol_count + merges
    try:
        spent = spend_on_merges(cell_count, symbol_count, most_symbols, allowance_bytes)
    except DoesNotFitError as refused:
        allowance_bytes += advised_bytes(refused)
        spent = spend_on_merges(cell_count, symbol_count, most_symbols, allowance_bytes)
    assert sum(spent.needs.values()) <= allowance_bytes
    assert spent.pair_slots & (spent.pair_slots - 1) == 0
    assert spent.pair_slots >= 2 * min(most_symbols, cell_count)
    assert 1024 <= spent.list_room < 2**32
    assert spent.bits == 8 or most_symbols < 2**spent.bits


def test_more_cells_than_can_be_numbered_are_refused_whatever_the_memory() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        spend_on_merges(2**32, 256, 300, 2**50)
    assert "--memory" not in refused.value.remedy


def test_a_pair_with_too_many_places_is_refused_with_a_remedy_that_works(tmp_path: Path) -> None:
    word, little_bytes = b"a" * (4 * A_MILLION), 6 * MIB
    wanted = MergeSettings(most_merges=20)
    with pytest.raises(DoesNotFitError) as refused:
        learn({word: 1}, tmp_path, wanted, allowance_bytes=little_bytes)
    enough_bytes = little_bytes + advised_bytes(refused.value)
    learnt = learn({word: 1}, tmp_path, wanted, allowance_bytes=enough_bytes)
    assert learnt.choices == train_on_one_word(word, 20)


def test_cells_move_to_a_file_for_a_pair_with_many_places(tmp_path: Path) -> None:
    """In memory with them a quarter of its places had room; the cells go to a file then."""
    word, wanted = b"a" * A_MILLION, MergeSettings(most_merges=20)
    learnt = learn({word: 1}, tmp_path, wanted, allowance_bytes=9_600_000)
    assert learnt.choices == train_on_one_word(word, 20)
    assert learnt.allowances.cells_in_file


MANY_WORDS = 40_000


@cache
def many_words() -> WordCounts:
    """Half a million cells of 60 letters, common and rare ones."""
    random = np.random.default_rng(0)
    letters = (33 + 60 * random.random((MANY_WORDS, 12)) ** 2).astype(np.uint8)
    counts = (1 / (random.random(MANY_WORDS) + 1e-4)).astype(int) + 1
    return {row.tobytes(): count for row, count in zip(letters, counts.tolist(), strict=True)}


LITTLE_BYTES = {"cells in a file": 5_600_000, "narrow cells at first": 6_500_000}
"""With little room for half a million cells."""


@BOTH_RULES
def test_the_allowance_changes_memory_and_never_output(tmp_path: Path, ties: Ties) -> None:
    wanted = MergeSettings(most_merges=700, ties=ties)
    ample, in_file, narrow = (
        learn(many_words(), tmp_path, wanted, allowance_bytes=allowance_bytes)
        for allowance_bytes in (256 * MIB, *LITTLE_BYTES.values())
    )
    assert not ample.allowances.cells_in_file
    assert in_file.allowances.cells_in_file
    assert ample.recounts < narrow.recounts
    assert ample.steps.tolist() == in_file.steps.tolist() == narrow.steps.tolist()


LEARN = """
import sys
from pathlib import Path
from lowtide.memory.meter import PeakMeter, private_bytes
from lowtide.tokenizer.merge_pairs import MergeLearner, MergeSettings, read_classes
from lowtide.tokenizer.word_runs import RunRecord, map_run
folder, allowance_bytes, merges, ties = Path(sys.argv[1]), *map(int, sys.argv[2:4]), sys.argv[4]
wanted = MergeSettings(most_merges=merges, ties=ties)
size_bytes = (folder / "all.words").stat().st_size
record = RunRecord(name="all.words", size_bytes=size_bytes, digest="")
with map_run(folder, record) as words, PeakMeter(interval_seconds=0.001) as meter:
    before, classes = private_bytes(), read_classes(words)
    with MergeLearner(
        words, classes, wanted, allowance_bytes=allowance_bytes, folder=folder
    ) as learner:
        first = learner.allowances
        assert sum(len(steps) for steps in learner.learn(merges)) == merges
print(meter.peak.private_bytes - before, first.bits, first.cells_in_file, learner.allowances.bits)
"""


def learn_apart(
    table: WordCounts, folder: Path, wanted: MergeSettings, *, allowance_bytes: int
) -> tuple[int, str]:
    """The most memory that another process had for it, and how it was spent."""
    (folder / "all.words").write_bytes(encode_run(table))
    command = [sys.executable, "-c", LEARN, str(folder), str(allowance_bytes)]
    command += [str(wanted.most_merges), wanted.ties]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    peak_bytes, how = said.strip().split(" ", 1)
    return int(peak_bytes), how


@linux_only
@pytest.mark.parametrize(
    ("allowance_bytes", "how"),
    [
        (LITTLE_BYTES["cells in a file"], "16 True 16"),
        (LITTLE_BYTES["narrow cells at first"], "8 False 16"),
        (40 * MIB, "16 False 16"),
    ],
    ids=[*LITTLE_BYTES, "wide cells"],
)
def test_learning_stays_within_its_allowance_and_leaves_no_file(
    tmp_path: Path, allowance_bytes: int, how: str
) -> None:
    wanted = MergeSettings(most_merges=700)
    peak_bytes, spent = learn_apart(many_words(), tmp_path, wanted, allowance_bytes=allowance_bytes)
    assert spent == how
    assert peak_bytes < allowance_bytes
    assert [path.name for path in tmp_path.iterdir()] == ["all.words"]


@linux_only
@pytest.mark.parametrize("ties", ["huggingface", pytest.param("greatest", marks=NOT_YET)])
def test_the_tokens_of_one_long_word_fit_as_well(tmp_path: Path, ties: Ties) -> None:
    """Spelled out they would be a hundred times as long as the word."""
    table = {long_words()["two letters"]: 1}
    wanted = MergeSettings(most_merges=13_000, ties=ties)
    peak_bytes, _ = learn_apart(table, tmp_path, wanted, allowance_bytes=24 * MIB)
    assert peak_bytes < 24 * MIB


@linux_only
@pytest.mark.parametrize(
    "how",
    [
        Spending(in_file=True),
        Spending(bits=8, pair_slots=1 << 16),
    ],
    ids=["first", "wider"],
)
def test_a_full_disk_is_a_storage_error(tmp_path: Path, how: Spending) -> None:
    """Cells that were only promised by the disk would end the process when they are written."""
    with spending(how), largest_file(4096), pytest.raises(StorageError, match="EFBIG"):
        learn(many_words(), tmp_path, MergeSettings(most_merges=200))
