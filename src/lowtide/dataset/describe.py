"""Facts about a loader for people: its data and memory, and what a few seconds of loading show.

Memory is given apart from the page cache.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowtide.dataset.settings import WindowKind
from lowtide.dataset.token_dataset import TokenDataset
from lowtide.errors import UsageError
from lowtide.memory.meter import measure_tree, private_bytes
from lowtide.units import format_bytes, format_count, printable

_ORDER_STEP = 1 << 16
_LONGEST_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """Figures of a dataset as a loader sees it; `str()` gives a few lines."""

    path: str
    format: str
    split: str
    tokens: int
    documents: int | None
    """None when no index counts them."""
    tokenizer: str | None
    files: int
    stored_bytes: int
    context: int
    windows: str
    order: str
    seed: int
    window_count: int
    """Windows in an epoch."""
    padding_share: float
    """Share of padding among all positions of an epoch."""
    window_bytes: int
    """Private memory for one window of a batch: `x`, `y` and its raw tokens."""
    private_bytes: int
    """Measured private memory of this whole process."""
    mapped_bytes: int
    """Measured page cache that this process has mapped (tokens, libraries); the kernel can reclaim it."""
    exact: bool
    """False if the system offers only an estimate of the two memory figures."""
    learnt_tokens: int | None = None
    """Tokens that are targets by the loss mask; None for text."""

    def __str__(self) -> str:
        documents = "" if self.documents is None else f", {format_count(self.documents)} documents"
        files = "file" if self.files == 1 else "files"
        measured = "measured" if self.exact else "estimated"
        rows = [
            ("dataset", f"{self.path}, {self.format}, {format_bytes(self.stored_bytes)}"),
            (self.split, f"{format_count(self.tokens)} tokens{documents} in {self.files} {files}"),
            ("tokenizer", self.tokenizer or "not known"),
            (
                "epoch",
                f"{format_count(self.window_count)} {self.windows} windows of {self.context} tokens, "
                f"{_percent(self.padding_share)} padding, {self.order}, seed {self.seed}",
            ),
            ("a window", f"{format_bytes(self.window_bytes)} of private memory in a batch"),
            ("private", f"{format_bytes(self.private_bytes)} in this process ({measured})"),
            (
                "page cache",
                f"{format_bytes(self.mapped_bytes)} of mapped files, libraries among them: the kernel's "
                f"({measured})",
            ),
        ]
        if self.learnt_tokens is not None:
            share = _percent(self.learnt_tokens / max(1, self.tokens))
            learnt = f"{format_count(self.learnt_tokens)} tokens, {share} of them: others are not targets"
            rows.insert(2, ("learnt", learnt))
        return "\n".join(printable(f"{name:<12} {value}") for name, value in rows)


def _percent(share: float) -> str:
    return "under 0.01%" if 0 < share < 0.0001 else f"{share:.2%}"


def describe(dataset: TokenDataset) -> LoaderFacts:
    """Figures from the files and one measurement of this process; about a millisecond."""
    use = measure_tree()
    token_bytes = dataset.files[0].dtype.itemsize
    settings = dataset.settings
    return LoaderFacts(
        path=settings.path,
        format=dataset.format,
        split=settings.split,
        tokens=dataset.tokens,
        documents=dataset.document_count,
        tokenizer=dataset.tokenizer.name if dataset.tokenizer else None,
        files=len(dataset.files),
        stored_bytes=sum(file.file_bytes for file in dataset.files),
        context=dataset.context,
        windows=settings.windows,
        order=settings.order,
        seed=settings.seed,
        window_count=dataset.window_count,
        padding_share=dataset.padding_share,
        learnt_tokens=dataset.learnt_tokens,
        window_bytes=16 * dataset.context + token_bytes * (dataset.context + 1),
        private_bytes=use.private_bytes,
        mapped_bytes=use.mapped_file_bytes,
        exact=use.exact,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCheck:
    """What a few seconds of loading showed. Every figure is measured."""

    facts: LoaderFacts
    """Its memory figures were measured after loading."""
    batch_size: int
    batches: int
    seconds: float
    private_bytes_before: int
    """Measured after the first batch, when the buffers exist."""
    private_bytes_after: int
    epoch_windows_followed: int
    """Windows of the first epoch whose order was followed, without reading them."""
    epoch_windows_met: int
    """Different windows among those followed; fewer mean that one came twice."""
    epoch_tokens_followed: int
    """Tokens in the windows followed."""

    @property
    def batches_per_second(self) -> float:
        """Measured speed in batches."""
        return self.batches / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Measured speed in tokens, without padding."""
        positions = self.batches_per_second * self.batch_size * self.facts.context
        return positions * (1 - self.facts.padding_share)

    @property
    def whole_epoch(self) -> bool:
        """Whether the order was followed to the end of the epoch."""
        return self.epoch_windows_followed == self.facts.window_count

    @property
    def exactly_once(self) -> bool:
        """Whether no window came twice and, if the whole epoch was followed, no token was left out."""
        no_window_twice = self.epoch_windows_met == self.epoch_windows_followed
        all_tokens = not self.whole_epoch or self.epoch_tokens_followed == self.facts.tokens
        return no_window_twice and all_tokens


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
    """Read batches for `seconds`, then follow the order of an epoch for at most as long.

    It shows batches per second, private memory and page cache, and whether every token comes once.
    """
    if batch_size < 1 or not 0 < seconds <= _LONGEST_SECONDS:
        raise UsageError(
            f"{batch_size} windows a batch for {seconds} seconds cannot be run",
            remedy=f"pass `--batch 32 --seconds 3`, or others above 0 and up to {_LONGEST_SECONDS:.0f} seconds",
        )
    dataset = TokenDataset(path, split, context, windows=windows, tokenizer=tokenizer)
    dataset.batch(0, batch_size)
    before = private_bytes()
    batches, elapsed = _read_for(dataset, batch_size, seconds)
    after = private_bytes()
    facts = describe(dataset)
    followed, met, tokens = _follow_order(dataset, seconds)
    return LoaderCheck(
        facts=facts,
        batch_size=batch_size,
        batches=batches,
        seconds=elapsed,
        private_bytes_before=before,
        private_bytes_after=after,
        epoch_windows_followed=followed,
        epoch_windows_met=met,
        epoch_tokens_followed=tokens,
    )


def _read_for(dataset: TokenDataset, batch_size: int, seconds: float) -> tuple[int, float]:
    started = time.perf_counter()
    batches, elapsed = 0, 0.0
    while elapsed < seconds or not batches:
        dataset.batch(batches + 1, batch_size)
        batches += 1
        elapsed = time.perf_counter() - started
    return batches, elapsed


def _follow_order(dataset: TokenDataset, seconds: float) -> tuple[int, int, int]:
    """Windows followed, different windows among them, and their tokens. Holds one bit per window."""
    count = dataset.window_count
    met = np.zeros(-(-count // 8), dtype=np.uint8)
    stop_at = time.perf_counter() + seconds
    followed = tokens = 0
    while followed < count and (not followed or time.perf_counter() < stop_at):
        step = min(_ORDER_STEP, count - followed)
        epochs, numbers = dataset.order_run(followed, step)
        np.bitwise_or.at(met, numbers >> 3, (1 << (numbers & 7)).astype(np.uint8))
        tokens += dataset.windows.tokens_in(epochs, numbers)
        followed += step
    return followed, int(np.bitwise_count(met).sum()), tokens
