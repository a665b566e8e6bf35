"""The story of `export`: the same tokens in a peer's format, without tokenizing again."""

from __future__ import annotations

from pathlib import Path

from lowtide import __version__
from lowtide.dataset.find_tokens import open_dataset
from lowtide.errors import UsageError
from lowtide.settings import Format, Placement
from lowtide.shards.export import ExportedDataset, Progress, export_dataset
from lowtide.shards.layout import DEFAULT_SHARD_TOKENS
from lowtide.shards.manifest import DatasetManifest
from lowtide.storage.paths import as_path


def export(
    path: str | Path,
    out: str | Path,
    to: Format,
    *,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    eot: Placement | None = None,
    tokenizer: str | None = None,
    progress: Progress | None = None,
) -> DatasetManifest:
    """Rewrite the dataset at `path` into the folder `out`; the same call resumes after a crash."""
    return export_tokens(
        path,
        out,
        to,
        shard_tokens=shard_tokens,
        eot=eot,
        tokenizer=tokenizer,
        progress=progress,
    ).manifest


def export_tokens(
    path: str | Path,
    out: str | Path,
    to: Format,
    *,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    eot: Placement | None = None,
    tokenizer: str | None = None,
    progress: Progress | None = None,
) -> ExportedDataset:
    """The same, and whether there was anything to do."""
    dataset = open_dataset(path, tokenizer=tokenizer)
    if as_path(out).resolve() == dataset.path.resolve():
        raise UsageError(
            f"{out} is the dataset that is to be exported", remedy="pass another folder as `--out`"
        )
    return export_dataset(
        dataset,
        to,
        as_path(out),
        tool_version=__version__,
        shard_tokens=shard_tokens,
        eot=eot,
        progress=progress,
    )
