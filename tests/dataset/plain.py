"""What an epoch holds, said plainly: lists and loops that a reader can check, for the tests to compare with.

Most streams here are numbered: the token at position p has id p + 1. So a window says by itself which tokens
it holds, and 0 is padding and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.settings import Format, Placement
from lowtide.shards.layout import MANIFEST_NAME, ShardLayout, llmc_header
from lowtide.shards.manifest import DatasetManifest, write_manifest
from tests.shards.streams import Stream, make_dataset

IGNORED = -100
NUMBERED = 60_000
"""A vocabulary for numbered streams in 16 bits; the last id is end-of-text."""
Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shards:
    """A numbered stream over several files, some of them perhaps empty."""

    sizes: tuple[int, ...]
    form: Format
    wide: bool

    @property
    def tokens(self) -> int:
        return sum(self.sizes)

    @property
    def ids(self) -> npt.NDArray[np.unsignedinteger]:
        return numbered(self.tokens).astype(np.uint32 if self.wide else np.uint16)

    def write(self, folder: Path) -> Path:
        """As build-nanogpt and llm.c leave them."""
        stops = np.cumsum(self.sizes)
        for number, part in enumerate(np.split(self.ids, stops[:-1])):
            if self.form == "npy":
                np.save(folder / f"train_{number:06d}.npy", part)
            else:
                header = llmc_header(part.dtype.itemsize, len(part))
                (folder / f"train_{number:06d}.bin").write_bytes(header + part.tobytes())
        return folder


@st.composite
def shards(draw: st.DrawFn, *, most_tokens: int = 300) -> Shards:
    """Many small files: a window often lies in three or more."""
    sizes = draw(st.lists(st.integers(0, 25), min_size=1, max_size=most_tokens // 25))
    first = draw(st.integers(2, 25))
    form: Format = draw(st.sampled_from(["npy", "llmc"]))
    return Shards((first, *sizes), form, draw(st.booleans()))


def numbered(tokens: int) -> npt.NDArray[np.uint32]:
    return np.arange(1, tokens + 1, dtype=np.uint32)


def numbered_stream(lengths: Sequence[int]) -> Stream:
    """Documents of these lengths, of which some may be empty."""
    ends = np.cumsum(np.array(lengths, dtype=np.int64), dtype=np.int64)
    return Stream(numbered(int(ends[-1])), ends)


def numbered_dataset(
    folder: Path,
    lengths: Sequence[int],
    *,
    form: Format = "npy",
    shard_tokens: int = 50,
    eot: Placement = "end",
) -> Path:
    """A dataset of ours with an index of its documents."""
    layout = ShardLayout(format=form, vocabulary_size=NUMBERED, shard_tokens=shard_tokens)
    make_dataset(folder, layout, train=numbered_stream(lengths), eot=eot)
    return folder


def rename_tokenizer(folder: Path, manifest: DatasetManifest, fingerprint: str) -> None:
    """As if another tokenizer had made the dataset."""
    tokenizer = replace(manifest.tokenizer, name="other", fingerprint=fingerprint)
    (folder / MANIFEST_NAME).unlink()
    write_manifest(folder, replace(manifest, tokenizer=tokenizer))


def plain_positions(tokens: int, *, context: int, shift: int, number: int) -> list[int]:
    """The positions that a contiguous window holds: the ring cut at `shift`, `shift + context`, …"""
    ring = [(shift + step) % tokens for step in range(tokens)]
    return ring[number * context : (number + 1) * context]


def plain_window(
    ids: Sequence[int], *, context: int, shift: int, number: int
) -> tuple[list[int], list[int]]:
    """`x` and `y` of a contiguous window, from the whole stream."""
    own = plain_positions(len(ids), context=context, shift=shift, number=number)
    padding = context - len(own)
    x = [ids[at] for at in own] + [0] * padding
    y = [ids[at + 1] if at + 1 < len(ids) else IGNORED for at in own] + [IGNORED] * padding
    return x, y


def plain_document_ids(positions: Sequence[int], ends: Sequence[int], context: int) -> list[int]:
    """Numbers from 0; another one where another document begins, or the stream begins again."""
    numbers: list[int] = []
    for before, at in zip([None, *positions], positions, strict=False):
        if before is None:
            numbers.append(0)
            continue
        same = at == before + 1 and bisect_right(ends, at) == bisect_right(ends, before)
        numbers.append(numbers[-1] + (not same))
    return numbers + [-1] * (context - len(numbers))


def plain_pieces(
    lengths: Sequence[int], *, context: int, start: int = 0, stop: int | None = None
) -> list[tuple[int, int]]:
    """Documents between `start` and `stop`, each cut every `context` tokens from its own first one."""
    pieces: list[tuple[int, int]] = []
    end = 0
    for length in lengths:
        begin, end = end, end + length
        low, high = max(begin, start), end if stop is None else min(end, stop)
        pieces += [(at, min(high, at + context)) for at in range(low, high, context)]
    return pieces


def held_pieces(x: Array, ends: Sequence[int]) -> list[tuple[int, int]]:
    """The pieces that a row of a numbered stream holds, in its order: (start, stop)."""
    pieces: list[tuple[int, int]] = []
    for at in (x[x > 0] - 1).tolist():
        goes_on = (
            pieces and pieces[-1][1] == at and bisect_right(ends, at - 1) == bisect_right(ends, at)
        )
        if goes_on:
            pieces[-1] = (pieces[-1][0], at + 1)
        else:
            pieces.append((at, at + 1))
    return pieces


def whole_epoch(dataset: TokenDataset, epoch: int = 0, batch_size: int = 7) -> tuple[Array, Array]:
    """One epoch's windows, one below another."""
    batches = list(dataset.epoch(batch_size, epoch=epoch))
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])
