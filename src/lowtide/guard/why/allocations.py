"""Memory that was refused: how much, how full the card was, and which tensor has that size.

    1.54 GiB is batch 8 × 1024 positions × 50304 vocabulary × 4 bytes: the logits

torch prints sizes with two decimals, and of what it asked the card for: blocks of 2 MiB for a large tensor,
20 MiB for anything of 1 to 10 MiB, 2 MiB for what is smaller. Where the settings are known, a product that fits
is named. Otherwise only logits are tried, for vocabularies in use, and the answer calls it a guess; a size that
fits too many things is not explained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from lowtide.units import GIB, KIB, MIB

_MOST_BYTES = 2.0**62
"""A log may say anything."""
_UNITS = {
    "b": 1,
    "bytes": 1,
    "kib": KIB,
    "kb": KIB,
    "mib": MIB,
    "mb": MIB,
    "gib": GIB,
    "gb": GIB,
    "tib": GIB << 10,
}
"""These messages write `MB` for MiB."""  # fmt: skip
_SIZE = r"(\d+(?:\.\d*)?) ?(bytes|[KMGT]i?B)\b"
_TORCH = re.compile(r"Tried to allocate " + _SIZE)
_OTHERS = (
    re.compile(r"(?:you tried to allocate|trying to allocate|memory allocating|Unable to allocate) " + _SIZE),
    re.compile(r"(?:malloc of size|memory allocation of) (\d+)( |$)"),
)  # fmt: skip
_FIGURES = {
    "total_bytes": (rf"{_SIZE} total capacity", rf"total capac?i?ty of {_SIZE}", rf"max allowed: {_SIZE}"),
    "free_bytes": (rf"{_SIZE} free\b", rf"of which {_SIZE} is free"),
    "allocated_bytes": (
        rf"{_SIZE} already allocated",
        rf"Of the allocated memory {_SIZE} is allocated",
        rf"MPS allocated: {_SIZE}",
    ),
    "reserved_bytes": (rf"{_SIZE} reserved in total", rf"{_SIZE} cached"),
    "unused_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
}  # fmt: skip
_COMPILED = {name: [re.compile(text) for text in texts] for name, texts in _FIGURES.items()}
_OTHER_PROCESS = re.compile(rf"Process (\d+) has {_SIZE} memory in use")

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
"""Vocabulary sizes in use, and their owners. Powers of two are left out: everything fits those."""

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
SMALL_BLOCK = 2 * MIB
MIDDLE_BLOCK = 20 * MIB
_OWN_OVERHEAD_BYTES = GIB
"""A process holds about this much on a card beside torch's tensors, and no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedSize:
    """A refused allocation's size as it was printed: rounded, so between two numbers of bytes."""

    text: str
    low_bytes: int
    high_bytes: int
    in_blocks: bool
    """torch rounds up to whole blocks before it prints a size."""

    def fits(self, size_bytes: int) -> bool:
        """Whether a tensor of that size would have been printed so."""
        rounded = round_as_torch(size_bytes) if self.in_blocks else size_bytes
        return self.low_bytes <= rounded <= self.high_bytes

    @property
    def is_small_block(self) -> bool:
        """Whether this is a block that torch takes for any small tensor: it says nothing about the tensor."""
        blocks = (SMALL_BLOCK, MIDDLE_BLOCK)
        return self.in_blocks and any(self.low_bytes <= one <= self.high_bytes for one in blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """How full the card was; `None` where the message does not say."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    """In tensors that are alive."""
    unused_bytes: int | None = None
    """Held by torch in pieces that were all too small, or not in one place."""
    other_pid: int | None = None
    other_bytes: int | None = None
    """Another process on the same card."""


def round_as_torch(size_bytes: int) -> int:
    """What torch's allocator asks the card for when a tensor needs that much."""
    if size_bytes <= MIB:
        return SMALL_BLOCK
    if size_bytes < 10 * MIB:
        return MIDDLE_BLOCK
    return -(-size_bytes // SMALL_BLOCK) * SMALL_BLOCK


def read_requested_size(line: str) -> RequestedSize | None:
    """The size that was refused."""
    if match := _TORCH.search(line):
        return _requested_size(match, in_blocks="MPS" not in line)
    for pattern in _OTHERS:
        if match := pattern.search(line):
            return _requested_size(match, in_blocks=False)
    return None


def read_gpu_figures(line: str) -> GpuFigures:
    """All figures of torch's messages, from release 1.0 to 2.11."""
    found: dict[str, int | None] = {}
    for name, patterns in _COMPILED.items():
        matches = (pattern.search(line) for pattern in patterns)
        match = next(filter(None, matches), None)
        found[name] = _bytes(match[1], match[2]) if match else None
    allocated, reserved, unused = (
        found[f"{name}_bytes"] for name in ("allocated", "reserved", "unused")
    )
    if unused is None and allocated is not None and reserved is not None:
        # "cached" of the first releases was the unused part alone
        unused = reserved if "cached" in line else max(0, reserved - allocated)
    other_pid, other_bytes = _other_process(line, found["process_bytes"], allocated, unused)
    return GpuFigures(
        total_bytes=found["total_bytes"],
        free_bytes=found["free_bytes"],
        allocated_bytes=allocated,
        unused_bytes=unused,
        other_pid=other_pid,
        other_bytes=other_bytes,
    )


def _other_process(
    line: str, own_bytes: int | None, allocated: int | None, unused: int | None
) -> tuple[int | None, int | None]:
    """Another process on the card. In a container torch lists its own process too: that one is left out."""
    ours = (allocated or 0) + (unused or 0) + _OWN_OVERHEAD_BYTES
    others = [
        (int(match[1]), _bytes(match[2], match[3])) for match in _OTHER_PROCESS.finditer(line)
    ]
    if own_bytes is None:
        itself = next((one for one in others if (allocated or 0) <= one[1] <= ours), None)
        others = [one for one in others if one is not itself]
    return max(others, key=lambda one: one[1], default=(None, None))


def _bytes(number: str, unit: str) -> int:
    return int(min(float(number) * _UNITS[unit.strip().lower() or "b"], _MOST_BYTES))


def _requested_size(match: re.Match[str], *, in_blocks: bool) -> RequestedSize:
    number, unit = match[1], match[2].strip() or "bytes"
    factor = _UNITS[unit.lower()]
    size = min(float(number) * factor, _MOST_BYTES)
    decimals = len(number.partition(".")[2])
    slack = 0.5 * 10**-decimals * factor if factor > 1 else 0.0
    return RequestedSize(
        text=f"{number.rstrip('.')} {unit}",
        low_bytes=int(size - slack),
        high_bytes=int(size + slack) + (factor > 1),
        in_blocks=in_blocks,
    )


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
    caution: str = ""
    """What was guessed; empty where known settings alone give the size."""
    batch: int | None = None
    """The batch, where the size grows with it."""

    @property
    def exact(self) -> bool:
        """Whether every factor is a known setting."""
        return not self.caution


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


def recognise(
    size: RequestedSize, known: Dimensions, *, evaluating: bool = False
) -> TensorMatch | None:
    """The likeliest tensor of that size, or none that deserves the name."""
    if size.is_small_block or size.high_bytes < MIB:
        return None
    if evaluating and known.eval_batch is not None:
        known = replace(known, batch=known.eval_batch)
    place = " in eval" if evaluating else ""
    return (
        _from_settings(size, known, place) or _solved(size, known, place) or _guessed(size, place)
    )


def known_names(known: Dimensions) -> list[str]:
    """`batch 8`, `positions 1024`: what was found, for people."""
    return [
        f"{one.name.replace('_', ' ')} {getattr(known, one.name)}"
        for one in fields(known)
        if getattr(known, one.name) is not None
    ]


_Factors = Sequence[tuple[int, str]]


def _explained(
    tensor: str, factors: _Factors, width: int, *, batch: int | None, caution: str = ""
) -> TensorMatch:
    parts = [f"batch {n}" if name == "batch" else f"{n} {name}" for n, name in factors]
    product = " × ".join([*parts, f"{width} bytes"])
    return TensorMatch(product=product, tensor=tensor, caution=caution, batch=batch)


def _logits(batch: int, positions: int, vocabulary: int) -> _Factors:
    return [(batch, "batch"), (positions, "positions"), (vocabulary, "vocabulary")]


def _from_settings(size: RequestedSize, known: Dimensions, place: str) -> TensorMatch | None:
    for tensor, factors in _tensors(known):
        count = math.prod(number for number, _ in factors)
        for width in _WIDTHS:
            if size.fits(count * width):
                batch = known.batch if factors[0][1] == "batch" else None
                return _explained(tensor + place, factors, width, batch=batch)
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
            yield "the residual stream between two layers", [*tokens, (width, "width")]
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


def _solved(size: RequestedSize, known: Dimensions, place: str) -> TensorMatch | None:
    """Logits of another batch than the known one, with the batch that would fit."""
    if not (known.positions and known.vocabulary):
        return None
    for vocabulary in _paddings(known.vocabulary):
        for width in _WIDTHS:
            row = known.positions * vocabulary * width
            for batch in {size.low_bytes // row, size.high_bytes // row}:
                if 1 <= batch <= _MOST_BATCH and size.fits(batch * row):
                    caution = f"if its batch was {batch}: the settings say {known.batch}"
                    if known.batch is None:
                        caution = "its batch is concluded from the size"
                    factors = _logits(batch, known.positions, vocabulary)
                    return _explained(
                        "the logits" + place, factors, width, batch=batch, caution=caution
                    )
    return None


def _guessed(size: RequestedSize, place: str) -> TensorMatch | None:
    """Logits of a vocabulary in use, for a batch that is a power of two; None where several fit."""
    # Half of all tensors are a small number times a power of two: a round size could be any of them.
    step = max(MIB, 1 << max(0, size.low_bytes.bit_length() - 4))
    if -(-size.low_bytes // step) * step <= size.high_bytes:
        return None
    fits = [
        (vocabulary, positions, batch, width)
        for vocabulary in VOCABULARIES
        for width in _WIDTHS
        for positions in _POSITIONS
        for batch in {
            size.low_bytes // (vocabulary * positions * width),
            size.high_bytes // (vocabulary * positions * width),
        }
        if 1 <= batch <= _MOST_BATCH and batch & (batch - 1) == 0
        if size.fits(vocabulary * positions * batch * width)
    ]
    owners = {VOCABULARIES[vocabulary] for vocabulary, *_ in fits}
    if len(owners) != 1:
        return None
    vocabulary, positions, batch, width = min(fits, key=_strangeness)
    caution = f"a guess: {owners.pop()}'s vocabulary fits, and nothing here names batch or context"
    factors = _logits(batch, positions, vocabulary)
    return _explained("the logits" + place, factors, width, batch=batch, caution=caution)


def _strangeness(fit: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Small for what people choose: float32, a context of 1024, a table padded to whole tiles."""
    vocabulary, positions, _, width = fit
    return (width != 4, abs(positions.bit_length() - 11), vocabulary % 64)


def _paddings(vocabulary: int | None) -> list[int]:
    """The table as it is, and rounded up to the tiles that matrix units like."""
    if not vocabulary:
        return []
    return list(dict.fromkeys([vocabulary, *(-(-vocabulary // tile) * tile for tile in (64, 128))]))
