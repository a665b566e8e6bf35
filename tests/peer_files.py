"""Small tokenized folders as lowtide and its peers write them: what `bench/same_tokens.py` reads."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.same_tokens import END_OF_TEXT

Documents = list[list[int]]


def ids_of(numbers: list[int]) -> bytes:
    return np.array(numbers, dtype="<u2").tobytes()


def with_end(documents: Documents) -> list[list[int]]:
    return [[*ids, END_OF_TEXT] for ids in documents]


def write_stream(folder: Path, documents: Documents) -> None:
    (folder / "train.bin").write_bytes(b"".join(map(ids_of, with_end(documents))))


def write_llmc(folder: Path, documents: Documents) -> None:
    """In two shards; the second document begins in the first and ends in the second."""
    ids = [number for document in documents for number in (END_OF_TEXT, *document)]
    for number, part in enumerate((ids[:5], ids[5:])):
        header = np.zeros(256, dtype="<i4")
        header[:3] = 20240520, 1, len(part)
        (folder / f"train_{number:06d}.bin").write_bytes(header.tobytes() + ids_of(part))


def write_datatrove(folder: Path, documents: Documents) -> None:
    """A file for each task, and its ends beside it."""
    (folder / "tokens").mkdir()
    for number, part in enumerate((documents[:1], documents[1:])):
        path = folder / "tokens" / f"0000{number}_unshuffled.ds"
        path.write_bytes(b"".join(map(ids_of, with_end(part))))
        ends = np.cumsum([len(document) + 1 for document in part])
        Path(f"{path}.index").write_bytes(ends.astype("<u8").tobytes())


def write_dolma(folder: Path, documents: Documents) -> None:
    (folder / "tokens").mkdir()
    path = folder / "tokens" / "part-0-00000.npy"
    path.write_bytes(b"".join(map(ids_of, with_end(documents))))


def write_megatron(folder: Path, documents: Documents) -> None:
    documents = with_end(documents)
    lengths = [len(document) for document in documents]
    (folder / "text_document.bin").write_bytes(b"".join(map(ids_of, documents)))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
    index += np.array(lengths, dtype="<i4").tobytes()
    index += np.cumsum([0, *lengths[:-1]]).astype("<i8").tobytes()
    index += np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    (folder / "text_document.idx").write_bytes(index)


def chunk_of(items: list[bytes]) -> bytes:
    """How litdata and MDS begin a file: a count, then where each item begins and the last one ends."""
    head = 4 + 4 * (len(items) + 1)
    places = np.cumsum([head, *map(len, items)]).astype("<u4")
    return struct.pack("<I", len(items)) + places.tobytes() + b"".join(items)


def write_litdata(folder: Path, documents: Documents) -> None:
    (folder / "tokens").mkdir()
    items = [ids_of(document) for document in with_end(documents)]
    for number, part in enumerate((items[:2], items[2:])):
        (folder / f"tokens/chunk-{number}-0.bin").write_bytes(chunk_of(part))
    chunks = [{"filename": f"chunk-{number}-0.bin"} for number in range(2)]
    (folder / "tokens/index.json").write_text(json.dumps({"chunks": chunks}))


def write_mds(folder: Path, documents: Documents) -> None:
    (folder / "tokens").mkdir()
    items = [ids_of(document) for document in with_end(documents)]
    samples = [struct.pack("<I", len(item)) + item for item in items]
    (folder / "tokens/shard.00000.mds").write_bytes(chunk_of(samples))
    shards = [{"raw_data": {"basename": "shard.00000.mds"}}]
    (folder / "tokens/index.json").write_text(json.dumps({"shards": shards}))


def write_lowtide(folder: Path, documents: Documents) -> None:
    """The first document is held out; the rest lies in two shards, and one goes over their border."""
    (folder / "tokens").mkdir()
    val, *train = with_end(documents)
    ids = [number for document in train for number in document]
    np.save(folder / "tokens/val_000000.npy", np.array(val, dtype="<u2"))
    np.save(folder / "tokens/train_000000.npy", np.array(ids[:3], dtype="<u2"))
    np.save(folder / "tokens/train_000001.npy", np.array(ids[3:], dtype="<u2"))


WRITERS: dict[str, Callable[[Path, Documents], None]] = {
    "datatrove": write_datatrove,
    "dolma": write_dolma,
    "litdata": write_litdata,
    "llmc": write_llmc,
    "lowtide": write_lowtide,
    "mds": write_mds,
    "megatron": write_megatron,
    "stream": write_stream,
}
