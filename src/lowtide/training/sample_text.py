"""A few lines by the model while it learns: what no figure shows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

from lowtide.model.generate import generate
from lowtide.model.gpt import GPT
from lowtide.tokenizer.tokenizer import Tokenizer, decode_stream

_TOKENS = 60


class Sampler:
    """Writes the same number of tokens from the same seed every time, so that samples can be compared."""

    def __init__(self, tokenizer: Path, seed: int) -> None:
        self._folder = tokenizer
        self._seed = seed
        self._tokenizer: Tokenizer | None = None

    def __call__(self, model: GPT, drop: Callable[[], bool]) -> str | None:
        """None where the run has no tokenizer, or when `drop`, asked at each token, says so."""
        if not self._folder.is_dir():
            return None
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(self._folder)
        found = self._tokenizer
        first = found.end_of_text if found.end_of_text is not None else 0
        ids = generate(model, [first], count=_TOKENS, seed=self._seed, stop=found.end_of_text)
        text = "".join(decode_stream(found, takewhile(lambda _: not drop(), ids)))
        return None if drop() else text
