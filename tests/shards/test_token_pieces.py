"""Pieces of a stream come out of its files as they lie there, or an error does; never a signal."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide.errors import VerificationError
from lowtide.native import load_native
from lowtide.settings import Format
from lowtide.shards.layout import FORMATS, ShardLayout, TokenFile
from lowtide.shards.read import open_dataset
from lowtide.shards.token_pieces import Copier, MappedCopier, Pieces, PlainCopier, make_copier
from tests.loading_jobs import run_job
from tests.shards.streams import (
    NARROW,
    every_layout,
    fresh_folder,
    layout_name,
    make_dataset,
    make_stream,
)

LONG_AGO = 1_600_000_000


def make_mapped(files: Sequence[TokenFile]) -> Copier:
    return MappedCopier(files, scattered=True)


COPIERS = pytest.mark.parametrize(
    "make", [make_mapped, PlainCopier], ids=["mapped", "read one by one"]
)


def write_files(
    folder: Path, parts: Sequence[npt.NDArray[np.uint32]], dtype: str = "<u2", header: int = 0
) -> list[TokenFile]:
    """One file a part, each behind some bytes of header, last written long ago."""
    files = []
    for number, part in enumerate(parts):
        path = folder / f"{number:04d}.bin"
        path.write_bytes(bytes(header) + part.astype(dtype).tobytes())
        os.utime(path, (LONG_AGO, LONG_AGO))
        files.append(
            TokenFile(path=path, header_bytes=header, tokens=len(part), dtype=np.dtype(dtype))
        )
    return files


def pieces_of(spans: Sequence[tuple[int, int]], gap: int = 0) -> Pieces:
    """Spans (start, count), one behind another in the target with a gap between them."""
    starts = np.array([start for start, _ in spans], dtype=np.int64)
    counts = np.array([count for _, count in spans], dtype=np.int64)
    return Pieces(starts=starts, counts=counts, places=np.cumsum(counts + gap) - counts - gap)


def read_one(copier: Copier, start: int, count: int, dtype: str = "<u2") -> list[int]:
    target = np.zeros(count, dtype=dtype)
    copier.copy(pieces_of([(start, count)]), target)
    return target.tolist()


# The same tokens as in the files


@COPIERS
@given(data=st.data())
def test_pieces_are_what_lies_in_the_files_one_behind_another(
    make: Callable[[Sequence[TokenFile]], Copier], data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any))
    dtype = data.draw(st.sampled_from(["<u2", "<u4"]))
    header = data.draw(st.sampled_from([0, 128, 1024]))
    stream = np.arange(sum(sizes), dtype=np.uint32) + 7
    spans = [
        (start, data.draw(st.integers(1, len(stream) - start)))
        for start in data.draw(st.lists(st.integers(0, len(stream) - 1), min_size=1, max_size=90))
    ]
    gap = data.draw(st.integers(0, 3))
    pieces = pieces_of(spans, gap)
    untouched = 65_535
    target = np.full(int(pieces.places[-1] + pieces.counts[-1]) + gap, untouched, dtype=dtype)
    wanted = target.copy()
    for (start, count), place in zip(spans, pieces.places.tolist(), strict=True):
        wanted[place : place + count] = stream[start : start + count]
    with fresh_folder() as folder:
        parts = np.split(stream, np.cumsum(sizes)[:-1])
        copier = make(write_files(folder, parts, dtype, header))
        copier.fetch(pieces)
        copier.copy(pieces, target)
        copier.close()
    assert target.tolist() == wanted.tolist()


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    starts=st.lists(st.integers(0, 200), min_size=1, max_size=20),
    context=st.integers(1, 40),
    dtype=st.sampled_from(["<u2", "<u4"]),
)
def test_rows_are_widened_wherever_files_end_and_the_largest_id_is_told(
    sizes: list[int], starts: list[int], context: int, dtype: str
) -> None:
    total = sum(sizes)
    stream = np.random.default_rng(total).integers(0, 65_536, total, dtype=np.uint32)
    starts = [start for start in starts if start + context < total]
    if not starts:
        return
    pieces = pieces_of([(start, context + 1) for start in starts])
    x, y = (np.full((len(starts), context), -5, dtype=np.int64) for _ in range(2))
    rows = np.stack([stream[start : start + context + 1] for start in starts])
    with fresh_folder() as folder:
        files = write_files(folder, np.split(stream, np.cumsum(sizes)[:-1]), dtype)
        largest = make_mapped(files).widen(pieces, x, y)
    assert largest == rows.max()
    assert x.tolist() == rows[:, :-1].tolist()
    assert y.tolist() == rows[:, 1:].tolist()


@pytest.mark.parametrize("layout", every_layout(), ids=layout_name)
def test_every_layout_of_ours_is_read_by_both_copiers(layout: ShardLayout, tmp_path: Path) -> None:
    stream = make_stream([70, 1, 190, 65], layout.vocabulary_size)
    make_dataset(tmp_path, layout, train=stream)
    files = open_dataset(tmp_path).splits["train"].files
    for copier in (make_mapped(files), PlainCopier(files)):
        got = read_one(copier, 0, len(stream.ids), layout.dtype.str)
        assert got == stream.ids.tolist()


# Holding nothing that should not be held


def test_files_stay_mapped_without_descriptors_until_they_are_closed(tmp_path: Path) -> None:
    files = write_files(tmp_path, np.split(np.arange(4000, dtype=np.uint32), 40))
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    copier = make_copier(files, scattered=True)
    assert mapped_under(tmp_path) == 0
    assert read_one(copier, 0, 4000) == list(range(4000))
    assert mapped_under(tmp_path) == 40
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
    copier.close()
    assert mapped_under(tmp_path) == 0
    assert read_one(copier, 1000, 100) == list(range(1000, 1100))
    del copier
    gc.collect()
    assert mapped_under(tmp_path) == 0


def mapped_under(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{folder}/")


# Files that change while they are open


def replace_with_another(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(bytes(path.stat().st_size))
    os.utime(other, (LONG_AGO, LONG_AGO))
    other.replace(path)


def rewrite_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_and_fill_up(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


CHANGES = pytest.mark.parametrize(
    "change",
    [replace_with_another, rewrite_in_place, cut, cut_and_fill_up, Path.unlink],
    ids=["replaced", "rewritten", "cut", "cut and filled up", "removed"],
)
TOUCHED = pytest.mark.parametrize("touched", [False, True], ids=["untouched", "touched before"])


@COPIERS
@CHANGES
@TOUCHED
def test_a_file_that_changes_is_an_error_that_names_it_and_the_others_go_on(
    make: Callable[[Sequence[TokenFile]], Copier],
    change: Callable[[Path], None],
    touched: bool,
    tmp_path: Path,
) -> None:
    files = write_files(tmp_path, np.split(np.arange(30_000, dtype=np.uint32), 3))
    copier = make(files)
    if touched:
        assert read_one(copier, 15_000, 9) == list(range(15_000, 15_009))
    change(files[1].path)
    for _ in range(2):
        with pytest.raises(VerificationError, match=r"0001\.bin") as error:
            read_one(copier, 10_000, 10_000)
        assert error.value.remedy
    assert read_one(copier, 0, 10_000) == list(range(10_000))
    assert read_one(copier, 20_000, 10_000) == list(range(20_000, 30_000))


@COPIERS
@CHANGES
@TOUCHED
def test_a_file_put_back_is_read_again_and_never_what_stood_in_its_place(
    make: Callable[[Sequence[TokenFile]], Copier],
    change: Callable[[Path], None],
    touched: bool,
    tmp_path: Path,
) -> None:
    """The very file, kept under another name; where its bytes were changed, it stays refused."""
    files = write_files(tmp_path, np.split(np.arange(30_000, dtype=np.uint32), 3))
    copier = make(files)
    if touched:
        read_one(copier, 15_000, 9)
    kept = tmp_path / "kept"
    os.link(files[1].path, kept)
    change(files[1].path)
    with pytest.raises(VerificationError):
        read_one(copier, 10_000, 10_000)
    kept.replace(files[1].path)
    if change in (replace_with_another, Path.unlink):
        assert read_one(copier, 10_000, 10_000) == list(range(10_000, 20_000))
    else:
        with pytest.raises(VerificationError):
            read_one(copier, 10_000, 10_000)


@COPIERS
def test_a_file_cut_before_the_copier_is_made_is_refused_at_once(
    make: Callable[[Sequence[TokenFile]], Copier], tmp_path: Path
) -> None:
    files = write_files(tmp_path, [np.arange(10_000, dtype=np.uint32)])
    cut(files[0].path)
    with pytest.raises(VerificationError, match=r"0000\.bin"):
        make(files)


@COPIERS
@pytest.mark.parametrize(
    "layout", [layout for layout in every_layout() if layout.header_bytes], ids=layout_name
)
def test_a_header_that_is_not_the_manifests_is_refused(
    make: Callable[[Sequence[TokenFile]], Copier], layout: ShardLayout, tmp_path: Path
) -> None:
    make_dataset(tmp_path, layout, train=make_stream([300], layout.vocabulary_size))
    files = open_dataset(tmp_path).splits["train"].files
    content = bytearray(files[1].path.read_bytes())
    content[8] ^= 1
    files[1].path.write_bytes(content)
    with pytest.raises(VerificationError, match="train_000001"):
        read_one(make(files), 0, 300, layout.dtype.str)


# The index of documents, while documents are read


def make_indexed(folder: Path, form: Format, *, ours: bool) -> Path:
    """A dataset of ours, or what Megatron would have left; its index."""
    layout = ShardLayout(format=form, vocabulary_size=NARROW, shard_tokens=500)
    make_dataset(folder, layout, train=make_stream([70, 1, 390, 165, 99, 400, 75], NARROW))
    if not ours:
        (folder / "lowtide.json").unlink()
        (folder / "documents_TRAIN.npy").unlink()
    index = folder / ("documents_TRAIN.npy" if ours else "train.idx")
    os.utime(index, (LONG_AGO, LONG_AGO))
    return index


def change_index(path: Path, how: str) -> None:
    """Its last six numbers are document ends, or Megatron's first sequences."""
    content = path.read_bytes()
    ends = np.frombuffer(content[-48:], dtype="<i8").copy()
    if how == "shifted":
        ends[2] += 1
    if how == "flat":
        ends[:] = ends[0]
    path.write_bytes(content[:-48] + ends.tobytes()[: 40 if how == "cut" else 48])
    if how == "removed":
        path.unlink()


INDEXED = pytest.mark.parametrize(
    ("form", "ours"), [*((form, True) for form in FORMATS), ("megatron", False)]
)


@INDEXED
@pytest.mark.parametrize("how", ["cut", "removed", "shifted", "flat"])
def test_an_index_that_changes_while_documents_are_read_is_an_error(
    how: str, form: Format, ours: bool, tmp_path: Path
) -> None:
    index = make_indexed(tmp_path, form, ours=ours)
    dataset = lowtide.TokenDataset(tmp_path, context=16, windows="document")
    dataset.read(0, dataset.window_count)
    change_index(index, how)
    with pytest.raises(VerificationError, match=index.name):
        dataset.read(0, dataset.window_count)


@INDEXED
def test_an_index_that_loses_tokens_is_refused_when_it_is_opened(
    form: Format, ours: bool, tmp_path: Path
) -> None:
    index = make_indexed(tmp_path, form, ours=ours)
    change_index(index, "flat")
    with pytest.raises(VerificationError, match=index.name):
        lowtide.TokenDataset(tmp_path, context=16, windows="document")


# The compiled part


def test_a_page_beyond_the_end_is_told_by_its_pieces_number(tmp_path: Path) -> None:
    native, page, address = load_native(), mmap.PAGESIZE, ctypes.c_void_p()
    path = tmp_path / "a.bin"
    path.write_bytes(b"abcd" * page)
    with path.open("rb") as opened:
        assert native.lt_map_file(opened.fileno(), 4 * page, 1, ctypes.byref(address)) == 0
    os.truncate(path, page)
    room = np.zeros(12, dtype=np.uint8)
    sources = np.array([0, 2 * page, 4]) + (address.value or 0)
    targets, sizes = np.array([0, 4, 8]) + room.ctypes.data, np.array([4, 4, 4])
    columns = (sources.ctypes.data, targets.ctypes.data, sizes.ctypes.data)
    assert native.lt_copy_pieces(3, *columns) == 1
    assert room.tobytes() == b"abcd" + bytes(8)
    native.lt_unmap_file(address, 4 * page)


# In a process of its own: a SIGBUS would end it


def race_folder(folder: Path) -> Path:
    """Two shards: the second is cut by the job."""
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=200_000)
    make_dataset(folder / "tokens", layout, train=make_stream([700] * 570, NARROW))
    return folder / "tokens"


@pytest.mark.parametrize("faults", ["never", "before", "after"])
def test_a_shard_cut_while_batches_are_read_is_an_error_and_never_a_signal(
    faults: str, tmp_path: Path
) -> None:
    for windows in ("contiguous", "document"):
        done = run_job("race", race_folder(tmp_path / windows), windows, faults, 20)
        assert done.returncode == 0, done.stderr
        assert int(str(done.found["batches"])) >= 10


@pytest.mark.parametrize("how", ["met", "sent"])
@pytest.mark.parametrize("faults", ["never", "before", "after"])
def test_a_bus_error_that_is_not_ours_still_ends_the_process(
    faults: str, how: str, tmp_path: Path
) -> None:
    """And faulthandler, where it is in place, shows the traceback once."""
    done = run_job("foreign", race_folder(tmp_path), faults, how)
    assert done.returncode == -signal.SIGBUS, done
    assert done.stderr.count("Fatal Python error: Bus error") == (faults != "never")
    assert ("meet_a_foreign_bus_error" in done.stderr) == (faults != "never")
