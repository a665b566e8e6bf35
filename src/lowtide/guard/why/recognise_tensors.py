"""Which tensor has this size? 1.54 GiB is batch 8 × 1024 positions × 50304 vocabulary × 4 bytes: the logits.

With the settings of the run known a product that fits is named as such. Without them only logits are tried, for
vocabularies in use, and the answer says that it is a guess; a size that fits too many things is not explained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from lowtide.guard.why.gpu_figures import Asked
from lowtide.units import MIB

VOCABULARIES: dict[int, str] = {
    50257: "GPT-2",
    50304: "GPT-2",
    32000: "Llama 2",
    100277: "cl100k",
    128256: "Llama 3",
    151936: "Qwen",
    152064: "Qwen",
    200019: "o200k",
    256000: "Gemma",
}
"""Sizes in use, and whose they are. Powers of two are left out: everything fits those."""

_WIDTHS = (4, 2)
_MOST_BATCH = 512
_POSITIONS = tuple(1 << power for power in range(8, 16))
_NAMES = {
    "batch": "micro_batch_size|micro_batch|per_device_train_batch_size|device_batch_size"
    "|train_batch_size|batch_size",
    "eval_batch": "per_device_eval_batch_size|eval_batch_size|val_batch_size",
    "positions": "block_size|context_length|context|seq_len|seq_length|sequence_length|max_seq_len"
    "|max_seq_length|max_length|n_ctx|n_positions|max_position_embeddings",
    "vocabulary": "padded_vocab_size|vocab_size|vocabulary_size|n_vocab",
    "width": "n_embd|hidden_size|d_model|width",
    "heads": "n_head|n_heads|num_attention_heads|num_heads|heads",
    "layers": "n_layer|n_layers|num_hidden_layers|num_layers|layers",
}
_FIELDS = {name: field for field, names in _NAMES.items() for name in names.split("|")}
_SETTING = re.compile(
    rf"(?<![\w-])(?:--)?({'|'.join(sorted(_FIELDS, reverse=True))})[\"']?\s{{0,8}}[=:\s]\s{{0,8}}(\d{{1,7}})\b"
)
_NANOGPT = re.compile(r"vocab_size of GPT.2 to (\d{4,7})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """What is known of a model and its batch."""

    batch: int | None = None
    eval_batch: int | None = None
    positions: int | None = None
    vocabulary: int | None = None
    width: int | None = None
    heads: int | None = None
    layers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMatch:
    """A size explained."""

    product: str
    """`batch 8 × 1024 positions × 50304 vocabulary × 4 bytes`."""
    tensor: str
    exact: bool
    """Made of known settings alone; else a guess, and `caution` says of what."""
    caution: str = ""
    batch: int | None = None
    """Where the size grows with it."""


def read_dimensions(*texts: str) -> Dimensions:
    """Settings that commands and logs name, such as `batch_size = 8`; the last mention counts."""
    found: dict[str, int] = {}
    for text in texts:
        plain = text.replace("-", "_").replace("__", "--") if "-" in text else text
        for name, number in _SETTING.findall(plain):
            found[_FIELDS[name]] = int(number)
        if numbers := _NANOGPT.findall(plain):
            found["vocabulary"] = int(numbers[-1])
    return Dimensions(**{name: number for name, number in found.items() if number > 0})


def recognise(asked: Asked, known: Dimensions, *, evaluating: bool = False) -> TensorMatch | None:
    """The likeliest tensor of that size, or none that deserves the name."""
    if asked.tells_nothing or asked.high_bytes < MIB:
        return None
    if evaluating and known.eval_batch is not None:
        known = replace(known, batch=known.eval_batch)
    place = " in eval" if evaluating else ""
    return (
        _from_settings(asked, known, place)
        or _solved(asked, known, place)
        or _guessed(asked, place)
    )


def known_names(known: Dimensions) -> list[str]:
    """`batch 8`, `positions 1024`: what was found, for people."""
    return [
        f"{one.name.replace('_', ' ')} {getattr(known, one.name)}"
        for one in fields(known)
        if getattr(known, one.name) is not None
    ]


_Factors = Sequence[tuple[int, str]]


def _from_settings(asked: Asked, known: Dimensions, place: str) -> TensorMatch | None:
    for tensor, factors in _tensors(known):
        count = 1
        for number, _ in factors:
            count *= number
        for width in _WIDTHS:
            if asked.fits(count * width):
                grows = factors[0][1] == "batch"
                return TensorMatch(
                    product=_product(factors, width),
                    tensor=tensor + place,
                    exact=True,
                    batch=known.batch if grows else None,
                )
    return None


def _tensors(known: Dimensions) -> Iterator[tuple[str, _Factors]]:
    """Every tensor whose size follows from what is known, the usual culprits first."""
    batch, positions, width = known.batch, known.positions, known.width
    if batch and positions:
        tokens = [(batch, "batch"), (positions, "positions")]
        for vocabulary in _paddings(known.vocabulary):
            yield "the logits", [*tokens, (vocabulary, "vocabulary")]
        if known.heads:
            scores = [(batch, "batch"), (known.heads, "heads"), (positions, "positions")]
            yield "the attention scores of one layer", [*scores, (positions, "positions")]
        if width:
            yield "the hidden layer of an MLP", [*tokens, (4 * width, "wide (4 × width)")]
            yield (
                "queries, keys and values of one layer",
                [*tokens, (3 * width, "wide (3 × width)")],
            )
            yield "the stream between two layers", [*tokens, (width, "width")]
    if width:
        for vocabulary in _paddings(known.vocabulary):
            yield (
                "the token embedding, its gradient or one optimizer state of it",
                [(vocabulary, "vocabulary"), (width, "width")],
            )
        yield (
            "a matrix of an MLP, its gradient or one optimizer state of it",
            [(4 * width, "wide (4 × width)"), (width, "width")],
        )


def _solved(asked: Asked, known: Dimensions, place: str) -> TensorMatch | None:
    """Logits of another batch than the known one: what batch would it be?"""
    if not (known.positions and known.vocabulary):
        return None
    for vocabulary in _paddings(known.vocabulary):
        for width in _WIDTHS:
            row = known.positions * vocabulary * width
            for batch in {asked.low_bytes // row, asked.high_bytes // row}:
                if 1 <= batch <= _MOST_BATCH and asked.fits(batch * row):
                    factors = [
                        (batch, "batch"),
                        (known.positions, "positions"),
                        (vocabulary, "vocabulary"),
                    ]
                    return TensorMatch(
                        product=_product(factors, width),
                        tensor="the logits" + place,
                        exact=False,
                        caution=_other_batch(known.batch, batch),
                        batch=batch,
                    )
    return None


def _other_batch(known: int | None, found: int) -> str:
    if known is None:
        return "its batch is concluded from the size"
    return f"if its batch was {found}: the settings say {known}"


def _guessed(asked: Asked, place: str) -> TensorMatch | None:
    """Logits of somebody's vocabulary, for a batch that is a power of two; nothing where several fit."""
    if _is_round(asked):
        return None
    fits = [
        (vocabulary, positions, batch, width)
        for vocabulary in VOCABULARIES
        for width in _WIDTHS
        for positions in _POSITIONS
        for batch in {
            asked.low_bytes // (vocabulary * positions * width),
            asked.high_bytes // (vocabulary * positions * width),
        }
        if 1 <= batch <= _MOST_BATCH and batch & (batch - 1) == 0
        if asked.fits(vocabulary * positions * batch * width)
    ]
    owners = {VOCABULARIES[vocabulary] for vocabulary, *_ in fits}
    if len(owners) != 1:
        return None
    vocabulary, positions, batch, width = min(fits, key=_strangeness)
    factors = [(batch, "batch"), (positions, "positions"), (vocabulary, "vocabulary")]
    return TensorMatch(
        product=_product(factors, width),
        tensor="the logits" + place,
        exact=False,
        caution=f"a guess: {owners.pop()}'s vocabulary fits, and nothing here names batch or context",
        batch=batch,
    )


def _strangeness(fit: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Small for what people choose: float32, a context of 1024, a table padded to whole tiles."""
    vocabulary, positions, _, width = fit
    return (width != 4, abs(positions.bit_length() - 11), vocabulary % 64)


def _is_round(asked: Asked) -> bool:
    """Half of all tensors are a small number times a power of two: such a size tells nothing."""
    step = max(MIB, 1 << max(0, asked.low_bytes.bit_length() - 4))
    nearest = -(-asked.low_bytes // step) * step
    return nearest <= asked.high_bytes


def _paddings(vocabulary: int | None) -> list[int]:
    """The table as it is, and rounded up to the tiles that matrix units like."""
    if not vocabulary:
        return []
    return list(dict.fromkeys([vocabulary, *(-(-vocabulary // tile) * tile for tile in (64, 128))]))


def _product(factors: _Factors, width: int) -> str:
    parts = [f"batch {n}" if name == "batch" else f"{n} {name}" for n, name in factors]
    return " × ".join([*parts, f"{width} bytes"])
