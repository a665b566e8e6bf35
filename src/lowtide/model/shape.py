"""How large a GPT is: five numbers, and what follows from them. No torch here.

>>> shape = SHAPES["gpt2"]
>>> shape.parameter_count
124439808
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowtide.errors import UsageError

GPT2_VOCABULARY = 50257
_MOST = 1 << 31
_ROWS_OF_A_TILE = 128
"""Matrix units work in tiles: 50,304 columns are multiplied faster than 50,257."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """GPT-2's architecture in numbers."""

    layers: int
    heads: int
    width: int
    """Numbers that stand for one token between layers."""
    context: int = 1024
    vocabulary_size: int = GPT2_VOCABULARY

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "context", "vocabulary_size"):
            if not 1 <= getattr(self, name) < _MOST:
                raise UsageError(
                    f"a model with {name} of {getattr(self, name)} cannot be built",
                    remedy=f"pass 1 or more as {name}, below {_MOST:,}",
                )
        if self.width % self.heads:
            raise UsageError(
                f"a width of {self.width} cannot be shared by {self.heads} heads",
                remedy=f"pass a width that {self.heads} divides, such as "
                f"{self.heads * max(1, round(self.width / self.heads))}",
            )

    def whole_windows(self, tokens: int) -> int:
        """The nearest number of tokens that fills windows, one at least."""
        return max(1, round(tokens / self.context)) * self.context

    @property
    def head_width(self) -> int:
        """Numbers that one head of attention works with."""
        return self.width // self.heads

    @property
    def padded_vocabulary(self) -> int:
        """Rows of the embedding in memory; those beyond the vocabulary are never predicted."""
        return -(-self.vocabulary_size // _ROWS_OF_A_TILE) * _ROWS_OF_A_TILE

    @property
    def block_parameter_count(self) -> int:
        """Of one block: four matrices with their biases, two norms."""
        return 12 * self.width**2 + 13 * self.width

    @property
    def parameter_count(self) -> int:
        """As everyone counts them: without padding, the embedding once although the head uses it too."""
        embeddings = (self.vocabulary_size + self.context) * self.width
        return embeddings + self.layers * self.block_parameter_count + 2 * self.width

    @property
    def stored_parameter_count(self) -> int:
        """Numbers that lie in memory, padding included."""
        padding = (self.padded_vocabulary - self.vocabulary_size) * self.width
        return self.parameter_count + padding

    @property
    def flops_per_token(self) -> int:
        """Of one training step, forward and backward: matrices thrice, and attention over the whole context.

        As PaLM's appendix B counts it, so that figures can be compared; recomputation is not counted.
        """
        in_matrices = self.layers * 12 * self.width**2 + self.padded_vocabulary * self.width
        return 6 * in_matrices + 12 * self.layers * self.width * self.context

    def with_data(self, *, vocabulary_size: int, context: int | None = None) -> ModelShape:
        """The same model for another vocabulary, and perhaps another context."""
        return replace(self, vocabulary_size=vocabulary_size, context=context or self.context)


SHAPES: dict[str, ModelShape] = {
    "gpt2-pico": ModelShape(layers=2, heads=4, width=96),
    "gpt2-nano": ModelShape(layers=4, heads=4, width=128),
    "gpt2-micro": ModelShape(layers=6, heads=6, width=384),
    "gpt2-mini": ModelShape(layers=8, heads=8, width=512),
    "gpt2": ModelShape(layers=12, heads=12, width=768),
    "gpt2-medium": ModelShape(layers=24, heads=16, width=1024),
    "gpt2-large": ModelShape(layers=36, heads=20, width=1280),
    "gpt2-xl": ModelShape(layers=48, heads=25, width=1600),
}
"""From one that learns on a CPU within a minute to the largest that was published."""


def find_shape(name: str) -> ModelShape:
    """A shape by its name."""
    if name not in SHAPES:
        raise UsageError(f"there is no model {name!r}", remedy=f"pass one of {', '.join(SHAPES)}")
    return SHAPES[name]
