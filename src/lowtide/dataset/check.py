"""For people in doubt: run a loader for a few seconds and see speed, memory, and that nothing comes twice."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from lowtide.dataset.describe import LoaderFacts, describe
from lowtide.dataset.token_dataset import TokenDataset
from lowtide.memory.meter import private_bytes

_ORDER_RUN = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCheck:
    """What a few seconds of loading showed. Every figure was measured."""

    facts: LoaderFacts
    """Memory in it was looked at after the run."""
    batch_size: int
    batches: int
    seconds: float
    private_bytes_before: int
    """After the first batch: buffers are made then."""
    private_bytes_after: int
    epoch_windows_followed: int
    """How far the order of the first epoch was followed, without reading."""
    epoch_windows_met: int
    """How many different windows that were; less means that one came twice."""
    epoch_tokens_followed: int
    """Tokens that those windows hold."""

    @property
    def batches_per_second(self) -> float:
        return self.batches / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Padding is not a token."""
        positions = self.batches_per_second * self.batch_size * self.facts.context
        return positions * (1 - self.facts.padding_share)

    @property
    def whole_epoch(self) -> bool:
        """The order was followed to its end."""
        return self.epoch_windows_followed == self.facts.window_count

    @property
    def exactly_once(self) -> bool:
        """No window came twice; and where the epoch was followed to its end, no token was left out."""
        no_window_twice = self.epoch_windows_met == self.epoch_windows_followed
        all_tokens = not self.whole_epoch or self.epoch_tokens_followed == self.facts.tokens
        return no_window_twice and all_tokens


def check_loader(dataset: TokenDataset, *, batch_size: int, seconds: float) -> LoaderCheck:
    """Read batches for `seconds`, then follow the order of an epoch for as long at most."""
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
    """Windows followed, different windows among them, and their tokens. Holds one bit a window."""
    count = dataset.window_count
    met = np.zeros(-(-count // 8), dtype=np.uint8)
    stop_at = time.perf_counter() + seconds
    followed = tokens = 0
    while followed < count and (not followed or time.perf_counter() < stop_at):
        step = min(_ORDER_RUN, count - followed)
        epochs, numbers = dataset.order_run(followed, step)
        np.bitwise_or.at(met, numbers >> 3, (1 << (numbers & 7)).astype(np.uint8))
        tokens += dataset.windows.tokens_in(epochs, numbers)
        followed += step
    return followed, int(np.bitwise_count(met).sum()), tokens
