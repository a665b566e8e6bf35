"""Runs are added up exactly, whole or absent, and no bytes on disk make the merging crash."""

from __future__ import annotations

import doctest
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.errors import StorageError, VerificationError
from lowtide.memory.meter import PeakMeter, measure_tree
from lowtide.tokenizer import word_runs
from lowtide.tokenizer.word_runs import (
    BUFFER_BYTES,
    MOST_RUNS,
    RunRecord,
    RunWriter,
    WordTotals,
    check_run,
    decode_run,
    encode_run,
    map_run,
    merge_runs,
)
from lowtide.units import MIB
from tests.cutting_jobs import cut_while_reading

Table = dict[bytes, int]

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full and /proc")
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
HIGHEST_COUNT = 2**63 - 1
"""Sums of counts are signed."""
WORDS = st.binary(min_size=1, max_size=8) | st.text("ab\0", min_size=1).map(str.encode)
COUNTS = st.integers(1, 300) | st.integers(2**32 - 2, 2**48)
TABLES = st.dictionaries(WORDS, COUNTS, max_size=30)

DAMAGED = {
    "a word of no bytes": b"\x00\x01" + encode_run({b"b": 1}),
    "a count of nothing": b"\x01\x00a",
    "a length without end": b"\x80" * 30,
    "a count without end": b"\x01" + b"\xff" * 30,
    "a word longer than the run": b"\x05\x01abc",
    "a word as long as the address space": b"\xff" * 9 + b"\x01\x01abc",
    "a length and no more": b"\x03",
    "words in the wrong order": encode_run({b"b": 1}) + encode_run({b"a": 1}),
    "a word behind its beginning": encode_run({b"ab": 1}) + encode_run({b"a": 1}),
    "a word twice": encode_run({b"a": 1}) * 2,
}


def store(folder: Path, name: str, data: bytes) -> RunRecord:
    with RunWriter(folder / name) as writer:
        writer.write(memoryview(data))
        return writer.finish()


def store_all(folder: Path, runs: Iterable[bytes]) -> list[RunRecord]:
    """Without waiting for the disk, as often as these tests write."""
    records = []
    for number, data in enumerate(runs):
        (folder / f"{number}.words").write_bytes(data)
        records.append(RunRecord(name=f"{number}.words", size_bytes=len(data), digest=""))
    return records


def merge(folder: Path, runs: Iterable[bytes]) -> tuple[bytes, WordTotals]:
    """The merged run and what it comes to; what is said about the run on disk is true."""
    record, totals = merge_runs(folder, store_all(folder, runs), "all.words")
    check_run(folder, record)
    data = (folder / record.name).read_bytes()
    assert record.size_bytes == len(data)
    return data, totals


def add_up(tables: Iterable[Mapping[bytes, int]]) -> Table:
    total: Counter[bytes] = Counter()
    for table in tables:
        total.update(table)
    return dict(total)


def totals_of(table: Mapping[bytes, int]) -> WordTotals:
    return WordTotals(
        distinct_words=len(table),
        words=sum(table.values()),
        text_bytes=sum(len(word) * count for word, count in table.items()),
        distinct_bytes=sum(map(len, table)),
        longest_bytes=max(map(len, table), default=0),
    )


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@given(st.dictionaries(WORDS, COUNTS | st.integers(1, 2**64 - 1)))
def test_a_run_is_read_as_it_was_written_in_the_order_of_its_words(table: Table) -> None:
    decoded = decode_run(encode_run(table))
    assert decoded == table
    assert list(decoded) == sorted(table)


@in_one_folder
@given(tables=st.lists(TABLES, max_size=6))
def test_merged_runs_are_the_sum_of_their_tables(tmp_path: Path, tables: list[Table]) -> None:
    data, totals = merge(tmp_path, map(encode_run, tables))
    total = add_up(tables)
    assert data == encode_run(total)
    assert totals == totals_of(total)


@pytest.mark.parametrize(
    "counts",
    [[2**32 - 1, 1], [2**31] * 3, [2**62, 2**62 - 1], [2**57] * 63, [HIGHEST_COUNT]],
    ids=["32 bits", "33 bits", "63 bits", "63 runs", "one run"],
)
def test_counts_of_equal_words_add_up_exactly(tmp_path: Path, counts: list[int]) -> None:
    tables = [{b"a": 1, b"ab": count, b"b": 1} for count in counts]
    data, totals = merge(tmp_path, map(encode_run, tables))
    assert decode_run(data) == {b"a": len(counts), b"ab": sum(counts), b"b": len(counts)}
    assert totals.words == sum(counts) + 2 * len(counts)


@pytest.mark.parametrize(
    "counts",
    [[HIGHEST_COUNT + 1], [2**64 - 1], [2**62] * 2, [HIGHEST_COUNT] * 3],
    ids=["a bit more", "much more", "two runs", "three runs"],
)
def test_counts_that_cannot_be_added_up_are_refused(tmp_path: Path, counts: list[int]) -> None:
    """Beyond 63 bits they would be negative, and words be laid where no cell is."""
    with pytest.raises(VerificationError):
        merge(tmp_path, [encode_run({b"ab": count}) for count in counts])


def test_runs_without_words_and_no_runs_make_a_run_without_words(tmp_path: Path) -> None:
    for runs in ([], [b""], [b"", b""]):
        assert merge(tmp_path, runs) == (b"", totals_of({}))
    assert merge(tmp_path, [b"", encode_run({b"a": 2}), b""]) == (
        b"\x01\x02a",
        totals_of({b"a": 2}),
    )


def test_many_runs_are_merged_at_once(tmp_path: Path) -> None:
    """Every word stands in a third of the runs, so that many heads are equal."""
    tables = [
        {f"{word:03}".encode(): run + 1 for word in range(run % 3, 300, 3)}
        for run in range(3 * MOST_RUNS)
    ]
    data, totals = merge(tmp_path, map(encode_run, tables))
    assert data == encode_run(add_up(tables))
    assert totals == totals_of(add_up(tables))


def test_words_longer_than_the_buffer_are_merged_too(tmp_path: Path) -> None:
    long, longer = b"a" * (3 * MIB), b"a" * (3 * MIB) + b"b"
    tables = [{b"a": 1, long: 2, longer: 3}, {long: 40, b"z": 1}, {b"A": 7, longer: 50}]
    data, totals = merge(tmp_path, map(encode_run, tables))
    assert decode_run(data) == add_up(tables)
    assert totals == totals_of(add_up(tables))


def test_a_run_cut_short_is_refused_unless_it_ends_with_a_word(tmp_path: Path) -> None:
    table = {b"a": 1, b"abc": 300, b"b" * 20: 2**40, b"zz": 5}
    run = encode_run(table)
    whole = {len(encode_run(dict(sorted(table.items())[:count]))): count for count in range(5)}
    for cut in range(len(run) + 1):
        if cut in whole:
            data, _ = merge(tmp_path, [run[:cut]])
            assert list(decode_run(data)) == sorted(table)[: whole[cut]]
        else:
            with pytest.raises(VerificationError):
                merge(tmp_path, [run[:cut]])


def test_any_bit_that_flips_gives_an_error_or_a_whole_run(tmp_path: Path) -> None:
    run = encode_run({b"a": 1, b"abc": 300, b"b" * 9: 2**20, b"zz": 5})
    outcomes = Counter(merges_whole(tmp_path, flipped) for flipped in flip_every_bit(run))
    assert outcomes.keys() == {True, False}


def flip_every_bit(data: bytes) -> Iterator[bytes]:
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def merges_whole(folder: Path, run: bytes) -> bool:
    """Whether it was merged; then the words ascend, have counts, and are all of the run."""
    try:
        data, totals = merge(folder, [run])
    except VerificationError:
        return False
    table = decode_run(data)
    assert data == encode_run(table)
    assert totals == totals_of(table)
    assert b"" not in table
    assert 0 not in table.values()
    return True


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED.keys())
@pytest.mark.parametrize("beside", [(), (encode_run({b"a": 1, b"c": 1}),)], ids=["alone", "beside"])
def test_a_damaged_run_is_refused_and_nothing_is_written(
    tmp_path: Path, damaged: bytes, beside: Sequence[bytes]
) -> None:
    for runs in ([damaged, *beside], [*beside, damaged]):
        with pytest.raises(VerificationError) as caught:
            merge(tmp_path, runs)
        assert "--restart" in caught.value.remedy
        assert names(tmp_path) == [f"{number}.words" for number in range(len(runs))]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=3))
@in_one_folder
def test_no_bytes_make_merging_crash_or_hang(tmp_path: Path, runs: list[bytes]) -> None:
    try:
        data, _ = merge(tmp_path, runs)
    except VerificationError:
        return
    assert data == encode_run(decode_run(data))


def change_last_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"\x01"),
        change_last_byte,
    ],
    ids=["missing", "shorter", "longer", "other bytes"],
)
def test_a_run_that_is_not_as_it_was_written_is_refused(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    record = store(tmp_path, "a.words", encode_run({b"a": 1, b"b" * 3 * MIB: 2}))
    check_run(tmp_path, record)
    spoil(tmp_path / "a.words")
    with pytest.raises(VerificationError) as caught:
        check_run(tmp_path, record)
    assert str(tmp_path / "a.words") in caught.value.problem
    assert "--restart" in caught.value.remedy


def run_of_numbers(first: int, count: int, step: int) -> bytes:
    """Words of eight bytes in order: numbers as they are stored with the highest byte first."""
    entries = np.empty((count, 10), np.uint8)
    entries[:, :2] = (8, 1)
    numbers = np.arange(first, first + step * count, step, dtype=">u8")
    entries[:, 2:] = numbers.view(np.uint8).reshape(count, 8)
    return entries.tobytes()


@linux_only
def test_merging_holds_one_buffer_and_calls_back_after_each(tmp_path: Path) -> None:
    """Two runs of 10 MB: not one of them, nor what comes out, is ever held."""
    runs = store_all(tmp_path, (run_of_numbers(first, 1_000_000, 2) for first in (0, 1)))
    calls = []
    before = measure_tree().private_bytes  # other tests may have left processes behind
    with PeakMeter(interval_seconds=0.002) as meter:
        record, totals = merge_runs(tmp_path, runs, "all.words", after_each=lambda: calls.append(1))
    assert record.size_bytes == 20_000_000
    assert totals.distinct_words == totals.words == 2_000_000
    assert record.size_bytes // BUFFER_BYTES <= len(calls) <= record.size_bytes // BUFFER_BYTES + 2
    assert meter.peak.private_bytes - before < 2 * BUFFER_BYTES
    assert (tmp_path / "all.words").read_bytes() == run_of_numbers(0, 2_000_000, 1)


def test_a_mapped_run_is_its_bytes_even_when_there_are_none(tmp_path: Path) -> None:
    for data in (b"", b"\x01\x01a"):
        (record,) = store_all(tmp_path, [data])
        with map_run(tmp_path, record) as mapped:
            assert mapped.tobytes() == data


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("left_bytes", [0, 5000, 3_000_001])
def test_a_run_cut_while_it_is_read_is_an_error_and_never_a_signal(
    tmp_path: Path, left_bytes: int
) -> None:
    done = cut_while_reading("words", tmp_path, left_bytes)
    assert done == {"merging": "VerificationError", "learning": "VerificationError"}
    assert names(tmp_path) == ["0.words", "1.words"]


# ── Whole or absent ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """No file may be larger meanwhile: what a full disk is to a writer, with another number."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@linux_only
def test_a_disk_that_is_full_in_the_middle_of_a_merge_leaves_the_runs_alone(tmp_path: Path) -> None:
    runs = store_all(tmp_path, (run_of_numbers(first, 500_000, 2) for first in (0, 1)))
    with largest_file(3 * MIB), pytest.raises(StorageError, match="EFBIG"):
        merge_runs(tmp_path, runs, "all.words")
    assert names(tmp_path) == ["0.words", "1.words"]
    record, _ = merge_runs(tmp_path, runs, "all.words")
    check_run(tmp_path, record)


@linux_only
def test_a_disk_that_is_full_at_the_end_of_a_small_run_leaves_nothing(tmp_path: Path) -> None:
    """All of it is still buffered when it is finished, and once more when it is given up."""
    (tmp_path / f".a.words.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="ENOSPC"):
        store(tmp_path, "a.words", encode_run({b"a": 1}))
    assert names(tmp_path) == []
    check_run(tmp_path, store(tmp_path, "a.words", encode_run({b"a": 1})))


def test_a_folder_in_the_way_is_a_storage_error_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.words").mkdir()
    with pytest.raises(StorageError, match=r"a\.words"):
        store(tmp_path, "a.words", b"\x01\x01a")
    assert names(tmp_path) == ["a.words"]


def test_a_merge_that_is_interrupted_leaves_nothing_and_the_old_run_stands(tmp_path: Path) -> None:
    runs = store_all(tmp_path, [encode_run({b"a": 1})])
    old = store(tmp_path, "all.words", encode_run({b"old": 1}))

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_runs(tmp_path, runs, "all.words", after_each=interrupt)
    assert names(tmp_path) == ["0.words", "all.words"]
    check_run(tmp_path, old)


def test_a_run_that_is_missing_is_named(tmp_path: Path) -> None:
    gone = RunRecord(name="gone.words", size_bytes=1, digest="")
    with pytest.raises(StorageError, match=r"gone\.words"):
        merge_runs(tmp_path, [gone], "all.words")
    assert names(tmp_path) == []


def test_the_worked_examples_are_true() -> None:
    outcome = doctest.testmod(word_runs)
    assert outcome.attempted > 0
    assert outcome.failed == 0
