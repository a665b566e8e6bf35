"""A few lines by the model while it learns: what no figure shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from lowtide.model.generate import generate
from lowtide.model.gpt import GPT
from lowtide.tokenizer.tokenizer import Tokenizer, decode_stream

_TOKENS = 60


class Sampler:
    """Writes the same number of tokens from the same seed every time, so that samples can be compared.

    What follows `prompt`, or else an end of text, is made text by `read`.
    """

    def __init__(
        self,
        tokenizer: Path,
        seed: int,
        *,
        prompt: Sequence[int] = (),
        read: Callable[[Tokenizer, Iterator[int]], Iterator[str]] = decode_stream,
    ) -> None:
        self._folder = tokenizer
        self._seed = seed
        self._prompt = prompt
        self._read = read
        self._tokenizer: Tokenizer | None = None

    def __call__(self, model: GPT, drop: Callable[[], bool]) -> str | None:
        """None where the run has no tokenizer, or when `drop`, asked at each token, says so."""
        if not self._folder.is_dir():
            return None
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(self._folder)
        found = self._tokenizer
        prompt = self._prompt or [found.end_of_text if found.end_of_text is not None else 0]
        ids = generate(model, prompt, count=_TOKENS, seed=self._seed, stop=found.end_of_text)
        text = "".join(self._read(found, takewhile(lambda _: not drop(), ids)))
        return None if drop() else text
