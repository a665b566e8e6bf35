"""The same tokens in every form that `loader.py` reads: one file, shards of lowtide, litdata's chunks, MDS."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SHARDS = 1000
_END_OF_TEXT = 50256
_PIECE_TOKENS = 10_000_000
_PEER_CHUNK_BYTES = 64_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a way is asked for, and where the tokens are."""

    folder: Path
    batch: int
    context: int

    @property
    def train_bin(self) -> Path:
        return self.folder / "nanogpt" / "train.bin"

    @property
    def shards(self) -> Path:
        return self.folder / "shards"

    @property
    def litdata(self) -> Path:
        return self.folder / f"litdata-{self.context}"

    @property
    def mds(self) -> Path:
        return self.folder / f"mds-{self.context}"


def make_tokens(task: Task, tokens: int) -> None:
    """The same tokens in the forms that need no peer; what a kept folder has is left as it is."""
    if task.train_bin.exists() and task.train_bin.stat().st_size != 2 * tokens:
        raise SystemExit(f"{task.train_bin} holds another count of tokens: pass another --folder")
    _make(task.train_bin.parent, lambda folder: _write_train_bin(folder, tokens))
    _make(task.shards, lambda folder: _write_shards(task, folder, tokens))


def make_peer_tokens(task: Task, peer: str) -> None:
    """The same in the form of a peer, in whose environment this runs."""
    if peer == "litdata":
        _make(task.litdata, lambda folder: _write_litdata(task, folder))
    else:
        _make(task.mds, lambda folder: _write_mds(task, folder))


def _make(folder: Path, write: Callable[[Path], None]) -> None:
    """All of it or nothing: a run may be stopped, and its folder kept."""
    if folder.exists():
        return
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    write(partial)
    partial.rename(folder)
    print(f"made {folder.name} in {time.monotonic() - started:.0f} s", file=sys.stderr)


def _write_train_bin(folder: Path, tokens: int) -> None:
    """Random ids; documents have 500 tokens in the middle of the field, and 800 on the average."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    with (folder / "train.bin").open("wb") as out:
        for start in range(0, tokens, _PIECE_TOKENS):
            count = min(_PIECE_TOKENS, tokens - start)
            ids = generator.integers(0, _END_OF_TEXT, count, dtype=np.uint16)
            lengths = generator.lognormal(6.2, 1.0, count // 500 + 1).astype(np.int64) + 2
            ends = np.cumsum(lengths)
            ids[ends[ends < count] - 1] = _END_OF_TEXT
            ids[-1] = _END_OF_TEXT
            ids.tofile(out)


def _write_shards(task: Task, folder: Path, tokens: int) -> None:
    from lowtide import export

    shard_tokens = -(-tokens // SHARDS)
    export(task.train_bin, folder, "npy", shard_tokens=shard_tokens, tokenizer="gpt2")


def _write_litdata(task: Task, folder: Path) -> None:
    """Blocks fill a chunk without a rest, as in litdata's README."""
    with tempfile.TemporaryDirectory(dir=task.folder) as cache:
        os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = f"{cache}/chunks"
        os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = f"{cache}/data"
        from litdata import TokensLoader, optimize

        block = task.context + 1
        chunk = _PEER_CHUNK_BYTES // 2 // block * block
        tokens = task.train_bin.stat().st_size // 2
        optimize(
            fn=functools.partial(_blocks, str(task.train_bin), 64 * block, chunk),
            inputs=list(range(0, tokens, chunk)),
            output_dir=str(folder),
            chunk_size=chunk,
            item_loader=TokensLoader(),
            num_workers=1,
            verbose=False,
        )


def _blocks(path: str, count: int, chunk: int, start: int) -> Iterator[Any]:
    import torch

    data = np.memmap(path, dtype=np.uint16, mode="r")
    stop = min(start + chunk, len(data))
    for at in range(start, stop, count):
        yield torch.from_numpy(np.array(data[at : min(at + count, stop)]))


def _write_mds(task: Task, folder: Path) -> None:
    from streaming import MDSWriter

    block = task.context + 1
    data = np.memmap(task.train_bin, dtype=np.uint16, mode="r")
    columns = {"tokens": f"ndarray:uint16:{block}"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=_PEER_CHUNK_BYTES) as writer:
        for row in np.asarray(data[: len(data) // block * block]).reshape(-1, block):
            writer.write({"tokens": row})


def read_all(folder: Path) -> None:
    """Everything into the page cache."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass


@functools.cache
def missing(module: str, python: str, python_path: str) -> str:
    """Why an interpreter cannot import a module, asked in a process of its own; empty if it can."""
    code = f"import warnings; warnings.simplefilter('ignore'); import {module}"
    done = subprocess.run(
        [python, "-c", code],
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip().rsplit("\n", 1)[-1] if done.returncode else ""
