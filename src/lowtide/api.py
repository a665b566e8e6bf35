"""`lowtide.tokenize`, `lowtide.train_tokenizer` and `lowtide.export`: stages as calls, with a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.dataset.find_tokens import open_dataset
from lowtide.events import Listener, ignore
from lowtide.memory.budget import Budget
from lowtide.settings import Format, Placement, TokenizerSettings, TokenizeSettings
from lowtide.shards.layout import DEFAULT_SHARD_TOKENS
from lowtide.shards.manifest import DatasetManifest
from lowtide.stages.export import export_dataset
from lowtide.stages.settings import make_settings
from lowtide.stages.tokenize import TokenizeResult
from lowtide.stages.tokenize import tokenize as run_tokenize
from lowtide.stages.tokenizer_settings import make_tokenizer_settings
from lowtide.stages.train_tokenizer import CHECKPOINT_SECONDS, TokenizerResult
from lowtide.stages.train_tokenizer import train_tokenizer as run_train_tokenizer
from lowtide.stages.watch_run import ShouldStop, never_stop
from lowtide.storage.paths import as_path

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def tokenize(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    settings: TokenizeSettings | None = None,
    *,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
    restart: bool = False,
    progress: bool | None = None,
    listen: Listener | None = None,
    should_stop: ShouldStop = never_stop,
    **chosen: object,
) -> TokenizeResult:
    """Turn text files into token shards in the folder `out`, or resume where an earlier call was cut off.

    Every setting of `TokenizeSettings` may be given by name. `memory` ("1GiB", "50%") and `workers` change how
    much is used and how long it takes, never a byte of the output. A progress bar is shown in a terminal and in
    a notebook, with `progress=False` never. Raises StoppedError after a clean stop; the same call resumes.

        lowtide.tokenize("corpus/*.parquet", "tokens", column="code", memory="1GiB")
    """
    if chosen:
        settings = make_settings(_named(settings) | chosen)
    with _told(listen, progress) as told:
        return run_tokenize(
            inputs,
            out,
            settings,
            memory=memory,
            workers=workers,
            restart=restart,
            listen=told,
            should_stop=should_stop,
        )


def train_tokenizer(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    settings: TokenizerSettings | None = None,
    *,
    memory: Budget | str | int | None = None,
    workers: int | None = None,
    restart: bool = False,
    progress: bool | None = None,
    listen: Listener | None = None,
    should_stop: ShouldStop = never_stop,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    **chosen: object,
) -> TokenizerResult:
    """Learn a BPE tokenizer from text files into the folder `out`, or resume where an earlier call was cut off.

    Every setting of `TokenizerSettings` may be given by name. `memory` ("1GiB", "50%"), `workers` and
    `checkpoint_seconds` change how much is used and how long it takes, never a byte of the output. A progress
    bar is shown in a terminal and in a notebook, with `progress=False` never. Raises StoppedError after a clean
    stop; the same call resumes.

        lowtide.train_tokenizer("corpus/*.parquet", "tokenizer", vocab_size=8000)
    """
    if chosen:
        settings = make_tokenizer_settings(_named(settings) | chosen)
    with _told(listen, progress) as told:
        return run_train_tokenizer(
            inputs,
            out,
            settings,
            memory=memory,
            workers=workers,
            restart=restart,
            listen=told,
            should_stop=should_stop,
            checkpoint_seconds=checkpoint_seconds,
        )


def _named(settings: DataclassInstance | None) -> dict[str, object]:
    """The values that differ from their defaults: keywords come beside them."""
    if settings is None:
        return {}
    values = {one.name: getattr(settings, one.name) for one in fields(settings)}
    return {
        one.name: values[one.name] for one in fields(settings) if values[one.name] != one.default
    }


def export(
    path: str | Path,
    out: str | Path,
    to: Format,
    *,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    eot: Placement | None = None,
    tokenizer: str | None = None,
    memory: Budget | str | int | None = None,
    restart: bool = False,
    progress: bool | None = None,
    listen: Listener | None = None,
    should_stop: ShouldStop = never_stop,
) -> DatasetManifest:
    """Rewrite the tokens at `path` into the folder `out` in another format, or resume where a call was cut off.

    `path` holds a dataset, or files of nanoGPT, llm.c, Megatron or numpy, for which `tokenizer` names the
    tokenizer. `eot` moves the end-of-text token; None puts it where the format's readers expect it. A progress
    bar is shown in a terminal and in a notebook, with `progress=False` never. Returns the manifest of `out`.
    Raises StoppedError after a clean stop; the same call resumes.

        lowtide.export("tokens", "for-llmc", "llmc")
    """
    with _told(listen, progress) as told:
        return export_dataset(
            open_dataset(path, tokenizer=tokenizer),
            to,
            as_path(out),
            shard_tokens=shard_tokens,
            eot=eot,
            memory=memory,
            restart=restart,
            listen=told,
            should_stop=should_stop,
        ).manifest


@contextmanager
def _told(listen: Listener | None, progress: bool | None) -> Iterator[Listener]:
    """Where events go: to the caller's listener, to a bar where somebody looks on, or nowhere."""
    if listen is not None:
        yield listen
        return
    if progress is None:
        progress = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    if not progress:
        yield ignore
        return
    from lowtide.show.progress import show_progress

    with show_progress(quiet=False) as shown:
        yield shown
