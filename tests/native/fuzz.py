"""Feed the C part seeded random and hostile inputs. Run with a sanitized library, as `test_fuzz.py` does:

    LD_PRELOAD=libasan.so python -m tests.native.fuzz FOLDER TARGET --seed 1 --inputs 1000

FOLDER has the library. Every array has exactly the size that the C code is told, and is malloc's own, so that
a byte read or written beside it ends the process. Where the input is sound, the answer is compared with the
plain version's.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

import lowtide.native
from lowtide.dataset.pack_documents import NativePacker, best_fit_reference
from lowtide.errors import DoesNotFitError, VerificationError
from lowtide.native import load_native
from lowtide.settings import PatternName, Ties
from lowtide.shards.stamps import NativeStamps, stamp_of
from lowtide.tokenizer import merge_pairs
from lowtide.tokenizer.count_words import CountRules, WordCounter, count_words_reference
from lowtide.tokenizer.merge_pairs import MergeAllowances, MergeLearner, MergeSettings, read_classes
from lowtide.tokenizer.reference_train import train_reference
from lowtide.tokenizer.split_words import PATTERN_NUMBERS, load_classes, split_words_reference
from lowtide.tokenizer.word_runs import decode_run, encode_run

Bytes = npt.NDArray[np.uint8]
PATTERNS: tuple[PatternName, ...] = ("gpt2", "cl100k", "o200k")
TIES: tuple[Ties, ...] = ("huggingface", "greatest")
PIECES = tuple(
    piece.encode()
    for piece in (
        *("the", " it's", "'LL", "'ſ", "don't", " ", "  ", "\n", "\r\n", "\t \n", "123", "4567890"),
        *("naïve", "Straße", "привет", "你好", "ไทย", "👩‍👩‍👧", "e\u0301", "\u00a0", "\u3000"),
        *("/", "\n/", "..."),
        *("iPhone", "ABC", "<|end|>", "<|e", "\x00", "\U0010ffff"),
    )
)  # fmt: skip


def exactly(data: bytes) -> Bytes:
    """An allocation of its own, of just this size."""
    return np.frombuffer(data, np.uint8).copy()


def random_text(source: Random) -> bytes:
    """Sound and unsound UTF-8, in lengths around those at which the C code changes its way."""
    length = source.choice([0, 1, 2, 7, 8, 63, 64, 65, 127, 128, 130, source.randrange(400)])
    kind = source.randrange(5)
    if kind == 0:
        return source.randbytes(length)
    if kind == 1:
        return source.choice([*PIECES, b"a", b"\xff", b"\xf0\x9f"]) * (length // 2 + 1)
    text = b"".join(source.choices(PIECES, k=length // 3 + 1))
    if kind == 2:
        return text
    damaged = bytearray(text[: source.randrange(len(text) + 1)])
    for _ in range(source.randrange(4) if damaged else 0):
        damaged[source.randrange(len(damaged))] = source.randrange(256)
    return bytes(damaged)


def is_utf8(text: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        return bool(text.decode()) or not text
    return False


# ── Splitting and counting ──────────────────────────────────────────────────────────────────────────────


def fuzz_split(source: Random) -> None:
    native, classes = load_native(), load_classes()
    text, pattern = random_text(source), source.choice(PATTERNS)
    whole, found = [], 0
    while found < len(text):
        rest, room = exactly(text[found:]), source.randint(1, 80)
        ends = np.empty(room, np.uint32)
        count = native.lt_split_words(
            PATTERN_NUMBERS[pattern],
            rest.ctypes.data,
            rest.size,
            classes.ctypes.data,
            ends.ctypes.data,
            room,
        )
        assert 0 < count <= room
        assert (np.diff(ends[:count].astype(np.int64), prepend=0) > 0).all()
        whole += (ends[:count] + found).tolist()
        found = whole[-1]
    assert found == len(text)
    if is_utf8(text):
        lengths = [len(word.encode()) for word in split_words_reference(text.decode(), pattern)]
        assert whole == np.cumsum(lengths).tolist()


def fuzz_count(source: Random) -> None:
    """Several blocks in one table, which is written out, in pieces, whenever it is full."""
    marks = tuple({source.choice(PIECES) + source.randbytes(source.randrange(3)) for _ in range(4)})
    rules = CountRules(pattern=source.choice(PATTERNS), marks=marks[: source.randrange(5)])
    counter, native = WordCounter(rules, allowance_bytes=source.choice([0, 2**22])), load_native()
    texts, found = [random_text(source) for _ in range(6)], Counter[bytes]()
    if source.random() < 0.05:  # more distinct words than the first slots, or the arena, can take
        texts.append(b" ".join(source.randbytes(5).hex().encode() for _ in range(6000)))
    for text in texts:
        block, at = exactly(text), 0
        settings = ctypes.byref(counter._settings)
        while at < len(text):
            at = native.lt_count_block(counter._table, settings, block.ctypes.data, at, block.size)
            if at < len(text):
                found += spill(source, counter)
    found += spill(source, counter)
    counter.close()
    if all(map(is_utf8, [*texts, *rules.marks])):
        assert found == count_words_reference(texts, rules)


def spill(source: Random, counter: WordCounter) -> Counter[bytes]:
    native, table, words = load_native(), counter._table, counter.distinct_words
    assert native.lt_table_sort(table)
    longest, at, run = native.lt_table_longest(table), ctypes.c_uint64(0), b""
    room = np.empty(longest + 20 + source.randrange(200), np.uint8)
    while written := native.lt_table_write(table, at, room.ctypes.data, room.size):
        run += room[:written].tobytes()
    native.lt_table_clear(table)
    assert at.value == words == len(decode_run(run))
    assert list(decode_run(run)) == sorted(decode_run(run))
    return Counter(decode_run(run))


# ── Merging sorted words, and learning from them ────────────────────────────────────────────────────────


def random_table(source: Random) -> dict[bytes, int]:
    letters = source.choice([b"ab", b"abcde", bytes(range(256))])
    most = source.choice([1, 3, 300, 2**40])
    lengths = [source.choice([1, 2, 3, 9, source.randrange(1, 60)]) for _ in range(12)]
    return {bytes(source.choices(letters, k=length)): source.randint(1, most) for length in lengths}


def hostile_run(source: Random, run: bytes) -> bytes:
    """A run, or what is left of it: cut, with other bytes, with absurd lengths and counts, or none at all."""
    kind = source.randrange(6)
    if kind == 0:
        return run
    if kind == 1:
        return run[: source.randrange(len(run) + 1)]
    if kind == 2:
        return source.randbytes(source.randrange(200))
    if kind == 3:
        length, count = (source.choice([0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1]) for _ in "ab")
        return encode_run({b"ab": 1}) + varint(length) + varint(count) + run
    changed = bytearray(run or b"\0")
    for _ in range(source.randint(1, 4)):
        changed[source.randrange(len(changed))] = source.choice([0, 0x7F, 0x80, 0xFF, 1, 2])
    return bytes(changed)


def varint(value: int) -> bytes:
    """With up to ten digits, as a number of 64 bits may have."""
    return bytes([value >> 7 * at & 0x7F | 0x80 for at in range(9)]) + bytes([value >> 63])


def fuzz_merge(source: Random) -> None:
    native = load_native()
    tables = [random_table(source) for _ in range(source.randrange(6))]
    sound = source.random() < 0.5
    written = [encode_run(table) for table in tables]
    runs = [exactly(run if sound else hostile_run(source, run)) for run in written]
    addresses = np.array([run.ctypes.data for run in runs], np.uint64)
    sizes = np.array([run.size for run in runs], np.uint64)
    merger = native.lt_runs_open(addresses.ctypes.data, sizes.ctypes.data, len(runs))
    merged, needed, room = b"", ctypes.c_uint64(), np.empty(source.randrange(1, 100), np.uint8)
    while (
        count := native.lt_runs_write(merger, room.ctypes.data, room.size, needed) or needed.value
    ):
        if needed.value:
            room = np.empty(needed.value, np.uint8)
        else:
            merged += room[:count].tobytes()
    damaged, totals = native.lt_runs_damaged(merger), np.empty(5, np.uint64)
    native.lt_runs_totals(merger, totals.ctypes.data)
    native.lt_runs_close(merger)
    if sound:
        assert not damaged
        words = {word for table in tables for word in table}
        wanted = {word: sum(table.get(word, 0) for table in tables) for word in words}
        assert merged == encode_run(wanted)
        assert totals[1] == sum(wanted.values())


def fuzz_learn(source: Random) -> None:
    """Cells of every width, far too little room, and words that may change after they were counted."""

    def spend(cell_count: int, symbol_count: int, *_: int, **__: object) -> MergeAllowances:
        return MergeAllowances(
            bits=bits if symbol_count < 225 else max(16, bits),
            cells_in_file=in_file,
            pair_slots=slots,
            list_room=int(cell_count * share) + 8,
            needs={},
        )

    bits, in_file = source.choice([8, 16, 32]), source.random() < 0.1
    slots, share = source.choice([16, 64, 256]), source.choice([0.05, 0.3, 1.0, 1.5])
    merge_pairs.spend_on_merges = spend  # type: ignore[assignment]
    merge_pairs.spend_with_file = (  # type: ignore[assignment]
        lambda count, *_, **__: replace(spend(count, 256), cells_in_file=True)
    )
    table = random_table(source)
    sound, changes = source.random() < 0.4, source.random() < 0.5
    run = encode_run(table) if sound else hostile_run(source, encode_run(table))
    wanted = MergeSettings(most_merges=source.choice([0, 1, 5, 60, 300]), ties=source.choice(TIES))
    try:
        words = exactly(run)
        classes = read_classes(words)
        if not sound and changes:
            other = hostile_run(source, encode_run(random_table(source)))
            words = exactly(other[: len(run)].ljust(len(run), b"\1"))
        with (
            tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
            MergeLearner(
                words, classes, wanted, allowance_bytes=2**24, folder=Path(folder)
            ) as learner,
        ):
            steps = [
                (step["left"], step["right"], step["count"])
                for some in learner.learn(wanted.most_merges)
                for step in some
            ]
    except (VerificationError, DoesNotFitError):
        assert not sound or share < 1
        return
    if sound:
        plain = train_reference(
            table, vocabulary_size=256 + wanted.most_merges, special_count=0, ties=wanted.ties
        )
        assert steps == [(step.left, step.right, step.count) for step in plain]


# ── Packing and maps ────────────────────────────────────────────────────────────────────────────────────


def fuzz_pack(source: Random) -> None:
    room = source.choice([1, 2, 63, 64, 65, 127, 128, source.randrange(1, 3000)])
    count = source.choice([0, 1, 2, 256, source.randrange(300)])
    lengths = sorted((source.randint(1, room) for _ in range(count)), reverse=True)
    rows, made = NativePacker(room, load_native()).pack(np.array(lengths, np.int64))
    assert (rows.tolist(), made) == best_fit_reference(lengths, room)


def fuzz_map(source: Random) -> None:
    """Pieces and rows out of a mapped file that is cut in between."""
    native, address, page = load_native(), ctypes.c_void_p(), os.sysconf("SC_PAGESIZE")
    width = source.choice([2, 4])
    size = source.choice([2 * width, page, page + 2, 4 * page, source.randrange(16, 9000, 4)])
    content = np.frombuffer(source.randbytes(size), np.uint8)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(content.tobytes())
        file.flush()
        stamps = NativeStamps([file.name], [stamp_of(os.stat(file.name))])  # noqa: PTH116
        scattered = source.randrange(2)
        assert not native.lt_map_file(file.fileno(), size, scattered, ctypes.byref(address))
        left = source.choice([size, source.randrange(size + 1), 0])
        if left < size:
            os.truncate(file.name, left)
        readable = -(-left // page) * page
        content = np.where(
            np.arange(size) < left, content, np.uint8(0)
        )  # what the kernel pads with
        check_pieces(source, int(address.value or 0), content, readable)
        check_rows(source, int(address.value or 0), content, readable, width)
        native.lt_unmap_file(address, size)
        assert stamps.first_changed([0]) == (left == size)
    assert stamps.first_changed([0]) == 0


def check_pieces(source: Random, base: int, content: Bytes, readable: int) -> None:
    starts = [source.randrange(content.size + 1) for _ in range(source.randrange(5))]
    sizes = [source.randint(0, content.size - start) for start in starts]
    targets = [np.empty(size, np.uint8) for size in sizes]
    columns = [
        np.array(numbers, np.uint64)
        for numbers in (
            [base + start for start in starts],
            [target.ctypes.data for target in targets],
            sizes,
        )
    ]
    addresses = [column.ctypes.data for column in columns]
    native = load_native()
    native.lt_fetch_pieces(len(starts), addresses[0], addresses[2])
    done = native.lt_copy_pieces(len(starts), *addresses)
    missing = [size > 0 and at + size > readable for at, size in zip(starts, sizes, strict=True)]
    assert done == (missing.index(True) if True in missing else len(starts))
    for at, target in list(zip(starts, targets, strict=True))[:done]:
        assert (target == content[at : at + target.size]).all()


def check_rows(source: Random, base: int, content: Bytes, readable: int, width: int) -> None:
    context = source.randint(1, content.size // width - 1)
    most = content.size // width - context - 1
    starts = [width * source.randint(0, most) for _ in range(source.randrange(5))]
    sources = np.array([base + start for start in starts], np.uint64)
    x, y = (np.empty((len(starts), context), np.int64) for _ in range(2))
    largest = ctypes.c_uint32()
    done = load_native().lt_widen_rows(
        len(starts), context, width, sources.ctypes.data, x.ctypes.data, y.ctypes.data, largest
    )
    row_bytes = (context + 1) * width
    missing = [start + row_bytes > readable for start in starts]
    assert done == (missing.index(True) if True in missing else len(starts))
    for number in range(done):
        row = content[starts[number] : starts[number] + row_bytes].view(f"<u{width}")
        assert (x[number] == row[:-1]).all()
        assert (y[number] == row[1:]).all()


TARGETS: dict[str, Callable[[Random], None]] = {
    "split": fuzz_split,
    "count": fuzz_count,
    "merge": fuzz_merge,
    "learn": fuzz_learn,
    "pack": fuzz_pack,
    "map": fuzz_map,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inputs", type=int, default=1000)
    chosen = parser.parse_args()
    lowtide.native.__file__ = str(chosen.folder / "__init__.py")
    for number in range(chosen.inputs):
        try:
            TARGETS[chosen.target](Random(f"{chosen.seed} {number}"))
        except AssertionError as error:
            error.add_note(f"seed {chosen.seed}, input {number}")
            raise


if __name__ == "__main__":
    main()
