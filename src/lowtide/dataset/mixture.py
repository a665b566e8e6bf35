"""Several datasets as one, by weight in tokens: exact after every window, and a pure function of the position.

Of the first n windows, the first source has floor(n · w); of the rest, the second has its share of that rest,
and so on. Nothing is random and nothing drifts: after any number of windows each source is off its weight by
less than one window per source. The position determines the source and which of its windows comes.

    web, code = TokenDataset("web"), TokenDataset("code")
    mixture = Mixture({"web": (web, 0.7), "code": (code, 0.3)})
    str(mixture.plan(tokens=10_000_000_000))        # a table
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, lcm
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from lowtide.dataset.batches import ArrayPool, check_arrays
from lowtide.dataset.items import TrainerItems, WindowItems
from lowtide.dataset.order import Numbers
from lowtide.dataset.settings import check_position, whole
from lowtide.dataset.token_dataset import TokenDataset, need_torch
from lowtide.errors import UsageError
from lowtide.units import format_count, printable

if TYPE_CHECKING:
    from lowtide.dataset.loader import Loader

_FINEST = 1 << 40
"""Weights become whole numbers of at most this sum: exact to one part in 10¹², and products stay in 64 bits."""
_FINEST_FRACTION = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """The tokens that training will take from one source."""

    name: str
    tokens: int
    """Tokens in the source."""
    share: float
    """Share of all tokens of the training."""
    taken_tokens: int
    """Tokens to take, over several epochs if they are more than the source has."""

    @property
    def epochs(self) -> float:
        """Number of epochs over the source."""
        return self.taken_tokens / self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MixturePlan:
    """Training on `tokens` tokens, source by source; `str()` gives a table."""

    tokens: int
    sources: tuple[SourcePlan, ...]

    def __str__(self) -> str:
        width = max(6, *(len(one.name) for one in self.sources))
        lines = [f"{'source':<{width}}  {'tokens':>8}  {'share':>7}  {'taken':>8}  {'epochs':>8}"]
        lines += [
            f"{one.name:<{width}}  {format_count(one.tokens):>8}  {one.share:>7.2%}  "
            f"{format_count(one.taken_tokens):>8}  {one.epochs:>8.2f}"
            for one in self.sources
        ]
        return "\n".join(map(printable, lines))


class Mixture:
    """Windows of several datasets in one order, read and resumed like those of one."""

    def __init__(self, sources: Mapping[str, tuple[TokenDataset, float]]) -> None:
        if not sources:
            raise UsageError("a mixture needs a source", remedy="pass {'name': (dataset, weight)}")
        _check_pairs(sources)
        self.sources = {name: dataset for name, (dataset, _) in sources.items()}
        _check_alike(self.sources)
        self._given = dict(sources)
        self._weights = _proportions({name: weight for name, (_, weight) in sources.items()})
        self._parts = _whole_parts(
            [
                self._weights[name] / Fraction(dataset.tokens, dataset.window_count)
                for name, dataset in self.sources.items()
            ]
        )
        self._pool = ArrayPool()

    @property
    def context(self) -> int:
        """Tokens in a window."""
        return next(iter(self.sources.values())).context

    def batch(self, k: int, batch_size: int, *, documents: bool = False) -> tuple[Numbers, ...]:
        """Batch `k` of the mixture; see `TokenDataset.batch`."""
        count = whole("batch_size", batch_size, at_least=1)
        return self.read(whole("k", k, at_least=0) * count, count, documents=documents)

    def read(self, first: int, count: int, *, documents: bool = False) -> tuple[Numbers, ...]:
        """The windows at positions `first` up to `first + count`."""
        count = whole("count", count, at_least=1)
        arrays = self._pool.take(3 if documents else 2, count, self.context)
        self.fill(first, arrays)
        return arrays

    def fill(self, first: int, arrays: tuple[Numbers, ...]) -> None:
        """Read windows from position `first` on into arrays: x, y and perhaps documents."""
        first = check_position(first, len(arrays[0]))
        check_arrays(arrays, self.context)
        chosen, starts = self.choose(first, len(arrays[0]))
        for number, dataset in enumerate(self.sources.values()):
            rows = np.flatnonzero(chosen == number)
            if not rows.size:
                continue
            found = dataset.read(starts[number], len(rows), documents=len(arrays) > 2)
            for target, source in zip(arrays, found, strict=True):
                target[rows] = source

    def choose(self, first: int, count: int) -> tuple[Numbers, list[int]]:
        """The source of each position from `first` on, and the first position in each source."""
        chosen = np.full(count, len(self._parts) - 1, dtype=np.int64)
        starts: list[int] = []
        left = np.arange(count + 1, dtype=np.int64)  # positions so far that no source has taken
        at, whole = first, sum(self._parts)
        for number, part in enumerate(self._parts):
            taken, rest = divmod(at * part, whole)  # Python's numbers: they never overflow
            here = (rest + left * part) // whole
            starts.append(taken)
            chosen[(np.diff(here) > 0) & (chosen == len(self._parts) - 1)] = number
            left = left - here
            at -= taken
            whole -= part
        return chosen, starts

    def plan(self, tokens: int) -> MixturePlan:
        """The tokens and epochs that training on `tokens` tokens takes from each source."""
        total = sum(self._weights.values())
        return MixturePlan(
            tokens=tokens,
            sources=tuple(
                SourcePlan(
                    name=name,
                    tokens=dataset.tokens,
                    share=float(self._weights[name] / total),
                    taken_tokens=round(tokens * self._weights[name] / total),
                )
                for name, dataset in self.sources.items()
            ),
        )

    def loader(
        self,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        windows: int | None = None,
        device: str | None = None,
        prefetch: int = 2,
        documents: bool = False,
    ) -> Loader:
        """Batches as torch tensors; see `TokenDataset.loader`. Endless without `windows`."""
        need_torch()
        from lowtide.dataset.loader import Loader

        return Loader(
            self,
            batch_size,
            rank=rank,
            world_size=world_size,
            start=start,
            stop=None if windows is None else whole("windows", windows, at_least=1),
            device=device,
            prefetch=prefetch,
            documents=documents,
        )

    def items(self, windows: int, *, start: int = 0) -> WindowItems:
        """One window per item, `(x, y)`, up to position `windows`."""
        return WindowItems(self, first=start, stop=whole("windows", windows))

    def trainer_items(self, windows: int, *, start: int = 0) -> TrainerItems:
        """One window per item, `input_ids` and `labels`, up to position `windows`."""
        return TrainerItems(self, first=start, stop=whole("windows", windows))

    def identity(self) -> dict[str, str | int | float | None]:
        """What must be unchanged when training resumes."""
        sources = zip(self.sources.items(), self._parts, strict=True)
        return {
            f"source {number}, {name}: {key}": value
            for number, ((name, dataset), part) in enumerate(sources)
            for key, value in {**dataset.identity(), "part": part}.items()
        }

    def __repr__(self) -> str:
        total = sum(self._weights.values())
        shares = ", ".join(
            f"{name} {float(weight / total):.1%}" for name, weight in self._weights.items()
        )
        return f"<Mixture {shares}: windows of {self.context}>"

    def __reduce__(self) -> tuple[object, tuple[dict[str, tuple[TokenDataset, float]]]]:
        """A worker process opens the files itself."""
        return Mixture, (self._given,)


def _proportions(weights: Mapping[str, float]) -> dict[str, Fraction]:
    """Weights as shares of 1; 0.7 and 0.3 become 7/10 and 3/10, not the nearest binary fractions."""
    for name, weight in weights.items():
        if not (isinstance(weight, Real) and isfinite(weight) and weight > 0):
            raise UsageError(
                f"source {name!r} has a weight of {weight}",
                remedy="give every source a weight above zero, and leave out sources you do not want",
            )
    total = sum(Fraction(float(weight)) for weight in weights.values())
    exact = {name: Fraction(float(weight)) / total for name, weight in weights.items()}
    return {name: one.limit_denominator(_FINEST_FRACTION) or one for name, one in exact.items()}


def _whole_parts(rates: list[Fraction]) -> list[int]:
    """The rates in whole numbers of equal proportions; rounded where they would be too large."""
    common = lcm(*(rate.denominator for rate in rates))
    parts = [int(rate * common) for rate in rates]
    if sum(parts) > _FINEST:
        scale = Fraction(_FINEST, sum(parts))
        parts = [max(1, round(part * scale)) for part in parts]
    return parts


def _check_pairs(sources: Mapping[str, object]) -> None:
    for name, given in sources.items():
        if not (
            isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], TokenDataset)
        ):
            raise UsageError(
                f"source {name!r} is not a dataset with a weight",
                remedy=f"pass {{{name!r}: (dataset, 0.5)}}",
            )


def _check_alike(sources: Mapping[str, TokenDataset]) -> None:
    """Raise UsageError unless all sources have one tokenizer, one context and one `ignore_index`."""
    (first_name, first), *others = sources.items()
    for name, dataset in sources.items():
        if dataset.tokenizer is None:
            raise UsageError(
                f"nothing says which tokenizer made source {name!r}",
                remedy="open it with `tokenizer='gpt2'`, or whatever made it",
            )
    for name, other in others:
        assert first.tokenizer is not None, "checked above"
        assert other.tokenizer is not None, "checked above"
        if other.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise UsageError(
                f"{first_name!r} was made by {first.tokenizer.name} and {name!r} by "
                f"{other.tokenizer.name}: the same id means another token",
                remedy=f"tokenize {name!r} again with the tokenizer of {first_name!r}",
            )
        if (other.context, other.settings.ignore_index) != (
            first.context,
            first.settings.ignore_index,
        ):
            raise UsageError(
                f"{first_name!r} and {name!r} differ in `context` or `ignore_index`",
                remedy="open all sources with the same values",
            )
