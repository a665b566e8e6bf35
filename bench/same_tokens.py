"""What a tokenized folder holds, whoever wrote it: its documents without end-of-text, as digests that compare.

Peers place the end-of-text before or behind a document, or nowhere; they split, shuffle, or keep no borders. So
two digests are made: one of the documents in any order, one of all ids in a row.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

Ids = np.ndarray[tuple[int], np.dtype[np.uint16]]
END_OF_TEXT = 50256
_LLMC_HEADER_BYTES, _LLMC_MAGIC = 1024, 20240520
_MEGATRON_MAGIC = b"MMIDIDX\0\0"
_MEGATRON_UINT16 = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Tokens and documents; end-of-text is not counted, nor are documents without a token."""

    tokens: int
    documents: int
    any_order: int
    """The sum of the documents' digests: the same for the same documents, in whatever order."""
    in_a_row: str
    """Digest of all ids, one after another, without borders."""


def summarize(documents: Iterable[Ids]) -> Content:
    """The digests of documents that hold no end-of-text."""
    tokens = count = any_order = 0
    row = xxhash.xxh3_128()
    for ids in documents:
        if not len(ids):
            continue
        data = np.ascontiguousarray(ids, dtype="<u2").tobytes()
        row.update(data)
        any_order = (any_order + xxhash.xxh3_128_intdigest(data)) % (1 << 128)
        tokens, count = tokens + len(ids), count + 1
    return Content(tokens=tokens, documents=count, any_order=any_order, in_a_row=row.hexdigest())


def say_sameness(found: Content, wanted: Content) -> str:
    """`equal`, `equal, borders lost`, or `differs` with the difference in tokens."""
    if (found.documents, found.any_order) == (wanted.documents, wanted.any_order):
        return "equal"
    if found.in_a_row == wanted.in_a_row:
        return "equal, borders lost"
    more = found.tokens - wanted.tokens
    return f"differs ({more:+,} tokens)"


def split_documents(ids: Ids) -> Iterator[Ids]:
    """What stands between ends of text: it does not matter whether they lead or follow."""
    start = 0
    for end in np.flatnonzero(ids == END_OF_TEXT):
        yield ids[start:end]
        start = int(end) + 1
    yield ids[start:]


# Readers, one for each form; all take the folder that a way was given


def read_stream(folder: Path) -> Iterator[Ids]:
    """nanoGPT's and gigatoken's train.bin: ids and nothing else."""
    yield from split_documents(np.fromfile(folder / "train.bin", dtype="<u2"))


def read_llmc(folder: Path) -> Iterator[Ids]:
    """Shards with a header; a document may begin in one and end in the next."""
    shards = [_llmc_ids(path) for path in sorted(folder.glob("*.bin"))]
    yield from split_documents(np.concatenate(shards))


def _llmc_ids(path: Path) -> Ids:
    header = np.fromfile(path, dtype="<i4", count=3)
    ids = np.fromfile(path, dtype="<u2", offset=_LLMC_HEADER_BYTES)
    if list(header) != [_LLMC_MAGIC, 1, len(ids)]:
        raise ValueError(f"{path} begins with {list(header)} and holds {len(ids)} tokens")
    return ids


def read_datatrove(folder: Path) -> Iterator[Ids]:
    """Files of ids with an index of ends beside each."""
    for path in sorted((folder / "tokens").glob("*.ds")):
        ids = np.fromfile(path, dtype="<u2")
        for document in _cut(ids, np.fromfile(f"{path}.index", dtype="<u8")):
            yield from split_documents(document)


def read_dolma(folder: Path) -> Iterator[Ids]:
    """Files that are called .npy and have no header."""
    for path in sorted((folder / "tokens").glob("*.npy")):
        yield from split_documents(np.fromfile(path, dtype="<u2"))


def read_megatron(folder: Path) -> Iterator[Ids]:
    """One .bin, cut where its .idx says."""
    data = (folder / "text_document.idx").read_bytes()
    at = len(_MEGATRON_MAGIC)
    version, kind = int.from_bytes(data[at : at + 8], "little"), data[at + 8]
    if data[:at] != _MEGATRON_MAGIC or (version, kind) != (1, _MEGATRON_UINT16):
        raise ValueError(f"the index begins with {data[: at + 9]!r}")
    count = int.from_bytes(data[at + 9 : at + 17], "little")
    lengths = np.frombuffer(data, dtype="<i4", count=count, offset=at + 25)
    ids = np.fromfile(folder / "text_document.bin", dtype="<u2")
    for document in _cut(ids, np.cumsum(lengths, dtype=np.int64)):
        yield from split_documents(document)


def read_litdata(folder: Path) -> Iterator[Ids]:
    """Chunks: the count of items, where each begins and ends, then their ids; index.json names them."""
    index = json.loads((folder / "tokens/index.json").read_text())
    for chunk in index["chunks"]:
        for item in _cut_chunk((folder / "tokens" / chunk["filename"]).read_bytes()):
            yield from split_documents(np.frombuffer(item, dtype="<u2"))


def read_mds(folder: Path) -> Iterator[Ids]:
    """Shards with the same head; each sample begins with the size of its one column."""
    index = json.loads((folder / "tokens/index.json").read_text())
    for shard in index["shards"]:
        for sample in _cut_chunk((folder / "tokens" / shard["raw_data"]["basename"]).read_bytes()):
            yield from split_documents(np.frombuffer(sample, dtype="<u2", offset=4))


def _cut_chunk(data: bytes) -> Iterator[bytes]:
    count = int.from_bytes(data[:4], "little")
    places = np.frombuffer(data, dtype="<u4", count=count + 1, offset=4).tolist()
    for start, end in itertools.pairwise(places):
        yield data[start:end]


def _cut(ids: Ids, ends: Iterable[int]) -> Iterator[Ids]:
    start = 0
    for end in map(int, ends):
        yield ids[start:end]
        start = end
    if start != len(ids):
        raise ValueError(f"{len(ids) - start} tokens stand behind the last document")


def read_lowtide(folder: Path) -> Iterator[Ids]:
    """Shards of `lowtide tokenize`: those of each split are one row of ids."""
    for split in ("train", "val"):
        paths = sorted((folder / "tokens").glob(f"{split}_*.npy"))
        if paths:
            shards = [np.load(path, mmap_mode="r", allow_pickle=False) for path in paths]
            yield from split_documents(np.concatenate(shards))


READERS: dict[str, Callable[[Path], Iterator[Ids]]] = {
    "datatrove": read_datatrove,
    "dolma": read_dolma,
    "litdata": read_litdata,
    "llmc": read_llmc,
    "lowtide": read_lowtide,
    "mds": read_mds,
    "megatron": read_megatron,
    "stream": read_stream,
}
