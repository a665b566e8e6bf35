"""The story of `inspect --loader`: open a dataset as a loader does, and run it for a few seconds."""

from __future__ import annotations

from pathlib import Path

from lowtide.dataset.check import LoaderCheck, check_loader
from lowtide.dataset.settings import WindowKind
from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import UsageError

LONGEST_SECONDS = 3600.0


def try_loader(
    path: str | Path,
    *,
    split: str = "train",
    context: int = 1024,
    batch_size: int = 32,
    windows: WindowKind | None = None,
    seconds: float = 3.0,
    tokenizer: str | None = None,
) -> LoaderCheck:
    """Batches per second, private memory and page cache, and whether every token comes once."""
    if batch_size < 1 or not 0 < seconds <= LONGEST_SECONDS:
        raise UsageError(
            f"{batch_size} windows a batch for {seconds} seconds cannot be run",
            remedy=f"pass `--batch 32 --seconds 3`, or others above 0 and up to {LONGEST_SECONDS:.0f} seconds",
        )
    dataset = TokenDataset(path, split, context, windows=windows, tokenizer=tokenizer)
    return check_loader(dataset, batch_size=batch_size, seconds=seconds)
