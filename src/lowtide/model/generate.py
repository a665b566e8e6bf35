"""Text out of a model, one token after another.

    prompt → keys and values of every layer, kept → logits of the last position → one token → and again

Keys and values of what was read are kept (the cache), so that a new token costs one position and not all of
them. A full context slides: its last half is read anew from position 0, and the other half is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lowtide.errors import DataError, UsageError
from lowtide.model.gpt import GPT, Attention, Block


def generate(
    model: GPT,
    prompt: Sequence[int],
    *,
    count: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: int | None = None,
) -> Iterator[int]:
    """Up to `count` tokens that follow the prompt, each as soon as it is known; they end before `stop`.

    Temperature 0 takes the likeliest token. `top_k` leaves so many of the likeliest, `top_p` the fewest that
    together have such a probability. The seed alone decides what is drawn: numbers come from the CPU.
    """
    chooser = Chooser(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    _check_prompt(model, prompt, count)
    return _follow(model, list(prompt), count, chooser, stop)


def generate_reference(
    model: GPT,
    prompt: Sequence[int],
    *,
    count: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: int | None = None,
) -> Iterator[int]:
    """The same tokens without a cache: all that is in view is read again for each of them."""
    chooser = Chooser(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    _check_prompt(model, prompt, count)
    seen = list(prompt)
    for _ in range(count):
        if len(seen) > model.shape.context:
            seen = _last_half(model, seen)
        with torch.no_grad():
            features = model.features(torch.tensor([seen], device=_device(model)))
            token = chooser.choose(_logits(model, features[0, -1]))
        if token == stop:
            return
        seen.append(token)
        yield token


class Chooser:
    """Draws a token from logits, with random numbers of its own."""

    def __init__(
        self, *, temperature: float, top_k: int | None, top_p: float | None, seed: int
    ) -> None:
        _check_choice(temperature, top_k, top_p)
        self._temperature, self._top_k, self._top_p = temperature, top_k, top_p
        self._random = torch.Generator().manual_seed(seed)

    def choose(self, logits: Tensor) -> int:
        """One token; `logits` holds a number for each of the vocabulary."""
        wide = logits.detach().to("cpu", torch.float64)
        if not bool(torch.isfinite(wide).all()):
            raise DataError(
                "the model predicts numbers that are not finite: its training went wrong",
                remedy="pass an earlier checkpoint with `--step`",
            )
        if self._temperature == 0:
            return int(wide.argmax())
        scaled = (wide - wide.max()) / self._temperature  # at most 0: nothing can overflow
        probabilities, ids = self._leave_likeliest(torch.softmax(scaled, dim=0))
        return int(ids[self._draw(probabilities)])

    def _leave_likeliest(self, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """What may be drawn, the likeliest first if any are left out, and their ids."""
        if self._top_k is None and self._top_p is None:
            return probabilities, torch.arange(len(probabilities))
        most, ids = probabilities.sort(descending=True, stable=True)
        most = most[: self._top_k]
        if self._top_p is not None:
            most = most / most.sum()
            before = most.cumsum(0) - most
            most = most[: max(1, int((before < self._top_p).sum()))]
        return most, ids

    def _draw(self, probabilities: Tensor) -> int:
        upto = probabilities.cumsum(0)
        at = torch.rand((), generator=self._random, dtype=torch.float64) * upto[-1]
        below = torch.nextafter(upto[-1], torch.zeros_like(at))  # rounding may reach the very end
        return int(torch.searchsorted(upto, torch.minimum(at, below), right=True))


class _Cache:
    """Keys and values of every layer, for as many positions as will be needed."""

    def __init__(self, model: GPT, positions: int) -> None:
        self._model = model
        self._positions = positions
        self._kept: list[tuple[Tensor, Tensor]] = []
        self.length = 0
        """Positions that were read."""

    def read(self, tokens: Sequence[int]) -> Tensor:
        """Go on with these tokens; the logits after the last. Several only when nothing was read before."""
        x = self._model.embed(torch.tensor([tokens], device=_device(self._model)), self.length)
        for layer, block in enumerate(self._model.blocks):
            assert isinstance(block, Block)
            x = x + self._attend(layer, block.attention, block.attention_norm(x))
            x = x + block.perceptron(block.perceptron_norm(x))
        self.length += len(tokens)
        last = x[:, -1]  # the head is the dearest part: one position is enough
        return _logits(self._model, self._model.final_norm(last)[0].to(x.dtype))

    def _attend(self, layer: int, attention: Attention, x: Tensor) -> Tensor:
        q, k, v = attention.split(x)
        begin, end = self.length, self.length + q.shape[2]
        assert begin == 0 or end == begin + 1, "several tokens after others would need a mask"
        if layer == len(self._kept):
            room = (*k.shape[:2], self._positions, k.shape[3])
            self._kept.append((k.new_empty(room), v.new_empty(room)))
        keys, values = self._kept[layer]
        keys[:, :, begin:end], values[:, :, begin:end] = k, v
        seen = keys[:, :, :end], values[:, :, :end]
        mixed = functional.scaled_dot_product_attention(q, *seen, is_causal=begin == 0)
        return attention.join(mixed)


def _follow(
    model: GPT, seen: list[int], count: int, chooser: Chooser, stop: int | None
) -> Iterator[int]:
    cache = _Cache(model, min(model.shape.context, len(seen) + count))
    fresh = list(seen)
    for _ in range(count):
        if cache.length + len(fresh) > model.shape.context:
            seen = fresh = _last_half(model, seen)
            cache.length = 0
        with (
            torch.no_grad()
        ):  # around each token: around the loop it would reach the caller's own code
            token = chooser.choose(cache.read(fresh))
        if token == stop:
            return
        seen, fresh = [*seen[-model.shape.context :], token], [token]
        yield token


def _logits(model: GPT, features: Tensor) -> Tensor:
    """(C,) to one number for each of the vocabulary; the rows that only pad it are never seen."""
    known = model.token_embedding.weight[: model.shape.vocabulary_size]
    return known.to(features.dtype) @ features


def _last_half(model: GPT, seen: Sequence[int]) -> list[int]:
    return list(seen[-max(1, model.shape.context // 2) :])


def _device(model: GPT) -> torch.device:
    return model.token_embedding.weight.device


def _check_prompt(model: GPT, prompt: Sequence[int], count: int) -> None:
    shape = model.shape
    if not prompt:
        raise UsageError(
            "an empty prompt gives the model nothing to go on from",
            remedy="pass some text, or the end-of-text token",
        )
    if len(prompt) > shape.context:
        raise UsageError(
            f"the prompt has {len(prompt)} tokens but the model sees {shape.context} at a time",
            remedy=f"pass a prompt of at most {shape.context} tokens",
        )
    unknown = next((token for token in prompt if not 0 <= token < shape.vocabulary_size), None)
    if unknown is not None:
        raise UsageError(
            f"the prompt holds the token {unknown} but the model knows 0 to {shape.vocabulary_size - 1}",
            remedy="encode the prompt with the tokenizer that the model was trained with",
        )
    if count < 0:
        raise UsageError(f"{count} tokens cannot be made", remedy="pass 0 or more as `--count`")


def _check_choice(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not (0 <= temperature < math.inf):
        raise UsageError(
            f"a temperature of {temperature} means nothing",
            remedy="pass 0 for the likeliest token, or a number such as `--temperature 0.8`",
        )
    if top_k is not None and top_k < 1:
        raise UsageError(f"--top-k {top_k} selects no token", remedy="pass 1 or more as `--top-k`")
    if top_p is not None and not 0 < top_p <= 1:
        raise UsageError(
            f"{top_p} is not a probability to keep",
            remedy="pass more than 0, at most 1, as `--top-p`",
        )
