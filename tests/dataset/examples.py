"""Datasets of examples: a stream with documents, and a flag for each token whether it is learnt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lowtide.settings import Format, Placement
from lowtide.shards.layout import WORK_FOLDER, ShardLayout, Split
from lowtide.shards.manifest import SplitRecord, write_manifest
from lowtide.shards.write import SplitWriter
from tests.dataset.plain import NUMBERED, numbered_stream
from tests.shards.streams import Stream, manifest_of

Flags = npt.NDArray[np.bool_]


def write_examples(
    folder: Path,
    layout: ShardLayout,
    *,
    eot: Placement = "none",
    **splits: tuple[Stream, Flags],
) -> Path:
    """A finished dataset of ours, with bits beside each split."""
    folder.mkdir(parents=True, exist_ok=True)
    records: dict[Split, SplitRecord] = {"train": SplitRecord(), "val": SplitRecord()}
    for name, (stream, flags) in splits.items():
        split: Split = "train" if name == "train" else "val"
        with SplitWriter.start(folder, layout, split, learnt=True) as writer:
            writer.append(stream.ids, stream.ends, flags)
            records[split] = writer.seal()
    write_manifest(folder, manifest_of(layout, records, eot=eot))
    (folder / WORK_FOLDER).rmdir()
    return folder


def numbered_examples(
    folder: Path,
    lengths: Sequence[int],
    flags: Flags,
    *,
    form: Format = "npy",
    shard_tokens: int = 50,
    eot: Placement = "none",
) -> Path:
    """The token at position p has id p + 1, so that a target tells which bit is its own."""
    layout = ShardLayout(format=form, vocabulary_size=NUMBERED, shard_tokens=shard_tokens)
    return write_examples(folder, layout, eot=eot, train=(numbered_stream(lengths), flags))


def some_flags(tokens: int, seed: int, share: float = 0.5) -> Flags:
    """Each token learnt or not, by a throw."""
    return np.random.default_rng(seed).random(tokens) < share
