"""What one training step holds at its fullest moment, in bytes, as a sum of named parts. No torch here.

A step is fullest at one of four moments, and each is a sum of things whose sizes follow from the shape:

    head       every layer's activations are kept, and the head turns its rows into logits, chunk by chunk
    last       the way back begins: all activations are still there, and one block's gradients in the making
    first      the way back ends: activations are gone, the gradients of all blocks are there
    embedding  the head's and the embedding's gradient of the shared matrix are added up

C is the width, and a "number" has 2 bytes in bfloat16 and 4 in float32; the stream that blocks add to is always
float32. Every block keeps for each token: what enters its two norms; their results (2C), queries, keys and
values (3C), what attention gives (C), 4C before and 4C behind the GELU; one float32 a head of attention, and
mean and deviation of both norms. Blocks that are compiled one by one keep what enters the second norm in
bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from lowtide.model.chunks import chunk_rows, slice_rows
from lowtide.model.shape import ModelShape
from lowtide.settings import Device, Recipe
from lowtide.units import MIB

Precision: TypeAlias = Literal["bfloat16", "float32"]
AttentionKind: TypeAlias = Literal["window", "document"]
"""Whether a position looks at the whole window before it, or at its own document alone."""
Moment: TypeAlias = Literal["head", "last", "first", "embedding", "evaluation"]

_WHOLE_LAYERS = 12
_FLOAT = 4
_INDEX = 8
_NUMBERS_OF_A_BLOCK = 14
"""Kept for each token in units of C, beside what enters the norms."""
_NUMBERS_IN_THE_MAKING = 4
"""In units of C, on a block's way back, beside the stream's gradient: what becomes the GELU's gradient."""
_NUMBERS_AT_THE_GELU = 8
"""In units of C, forward alone: 4C before the GELU and 4C behind it."""
_NUMBERS_OF_A_COMPILED_BLOCK = 5
"""A norm's result, and 4C which the GELU writes over. Measured on an H200."""
_QUANTISED_STATE = 1 + _FLOAT / 256
"""Bytes of one of torchao's 8-bit states: the number, and a float32 scale for 256 of them."""
WORKSPACE_BYTES = 32 * MIB
"""What cuBLAS takes for itself, inside PyTorch's allocator. Assumed: PyTorch's default on Hopper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """How a step is run, as far as memory is concerned."""

    recipe: Recipe = "fast"
    compiled: bool = True
    precision: Precision = "bfloat16"
    accumulating: bool = True
    """Whether a step has several parts: their gradients are there while the next part runs."""
    device: Device = "cuda"
    attention: AttentionKind = "window"

    @property
    def number_bytes(self) -> int:
        """Of one activation."""
        return 2 if self.precision == "bfloat16" else _FLOAT

    @property
    def recomputes(self) -> bool:
        """Whether only what enters a block is kept of it."""
        return self.recipe != "fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """The parts of one moment, in bytes."""

    moment: Moment
    weights: int
    gradients: int
    """Those of finished blocks, of earlier parts of the step, and of the head's matrix."""
    optimizer: int
    activations: int
    logits: int
    """One chunk's; never all."""
    copies: int
    """Weights in bfloat16, which autocast makes."""
    workspace: int

    @property
    def total(self) -> int:
        """What `torch.cuda.max_memory_allocated` is compared with."""
        return sum(size for _, size in self.parts())

    def parts(self) -> list[tuple[str, int]]:
        """Each part with its name."""
        names = [field.name for field in fields(self) if field.name != "moment"]
        return [(name, getattr(self, name)) for name in names]


def compiles_whole(shape: ModelShape, *, recompute: bool) -> bool:
    """Whether all blocks become one graph: where that takes seconds.

    That is 1 to 2 % faster, and takes 25 s for 12 layers on an H200's host, where a block takes 4.
    """
    return shape.layers <= _WHOLE_LAYERS and not recompute


def peak_of_step(shape: ModelShape, micro_batch: int, kind: StepKind) -> MemoryNeeds:
    """The fullest moment of a training step with `micro_batch` windows at a time."""
    return max(_moments(shape, micro_batch, kind), key=lambda needs: needs.total)


def peak_of_evaluation(shape: ModelShape, micro_batch: int, kind: StepKind) -> MemoryNeeds:
    """The same without gradients: one block's work at a time, or the head's chunks, which become float32."""
    tokens = micro_batch * shape.context
    logits = _evaluated_logits(shape, tokens, kind)
    in_a_block = tokens * shape.width * (_FLOAT + _bytes_in_a_block(kind))
    in_a_block += _mask(shape, tokens, kind)
    whole = kind.compiled and compiles_whole(shape, recompute=kind.recomputes)
    # One graph for all blocks gives the stream back when it ends, at the head.
    features = tokens * shape.width * (kind.number_bytes + _FLOAT * whole)
    at_the_head = logits + _head_copy(shape, kind) + features > in_a_block
    return _needs(
        "evaluation",
        shape,
        kind,
        gradients=0,
        activations=(features if at_the_head else in_a_block) + 2 * _INDEX * tokens,
        logits=logits if at_the_head else 0,
        copies=_copies_evaluated(shape, kind) + _head_copy(shape, kind) * at_the_head,
    )


def peak_of_run(shape: ModelShape, micro_batch: int, kind: StepKind) -> MemoryNeeds:
    """The fuller of training and evaluation: what must fit for a run to come to its end."""
    step = peak_of_step(shape, micro_batch, kind)
    evaluation = peak_of_evaluation(shape, micro_batch, kind)
    return step if step.total >= evaluation.total else evaluation


def bytes_of_checkpoint(shape: ModelShape, kind: StepKind) -> int:
    """Of one checkpoint on disk: the tensors, and at most so much for names and for where the run stands."""
    return _FLOAT * shape.stored_parameter_count + _optimizer(shape, kind) + MIB


def kept_by_block(shape: ModelShape, kind: StepKind) -> int:
    """Bytes that one block keeps of one token for the way back, when it keeps everything."""
    block_by_block = kind.compiled and not compiles_whole(shape, recompute=kind.recomputes)
    into_norms = shape.width * (_FLOAT + (kind.number_bytes if block_by_block else _FLOAT))
    numbers = _NUMBERS_OF_A_BLOCK * shape.width * kind.number_bytes
    return into_norms + numbers + _FLOAT * shape.heads + 4 * _FLOAT


def _moments(shape: ModelShape, micro_batch: int, kind: StepKind) -> list[MemoryNeeds]:
    return [
        _at_the_head(shape, micro_batch, kind),
        _at_a_block(shape, micro_batch, kind, layers_left=shape.layers),
        _at_a_block(shape, micro_batch, kind, layers_left=1),
        _at_the_embedding(shape, kind),
    ]


def _at_the_head(shape: ModelShape, micro_batch: int, kind: StepKind) -> MemoryNeeds:
    tokens = micro_batch * shape.context
    # What enters the last norm, which autocast makes float32; its result; and the gradient of that.
    around = tokens * shape.width * (_FLOAT + 2 * kind.number_bytes)
    return _needs(
        "head",
        shape,
        kind,
        gradients=_earlier_gradients(shape, kind) + _shared_matrix(shape),
        activations=_kept(shape, tokens, kind, shape.layers)
        + around
        + 2 * _INDEX * tokens
        + _mask(shape, tokens, kind),
        logits=_head_logits(shape, tokens, kind),
        copies=_copies(shape, kind, shape.layers) + _head_copy(shape, kind),
    )


def _at_a_block(
    shape: ModelShape, micro_batch: int, kind: StepKind, *, layers_left: int
) -> MemoryNeeds:
    tokens = micro_batch * shape.context
    kept = _kept(shape, tokens, kind, layers_left)
    if kind.recomputes:  # this one block has run again, and keeps everything
        kept += tokens * (kept_by_block(shape, kind) - _kept_anyway(shape))
    making = tokens * shape.width * _bytes_in_the_making(kind)
    finished = _FLOAT * (shape.layers - layers_left) * shape.block_parameter_count
    fresh = _FLOAT * 4 * shape.width**2  # of this block's widest matrix, the first to be there
    earlier = _earlier_gradients(shape, kind)
    return _needs(
        "last" if layers_left == shape.layers else "first",
        shape,
        kind,
        gradients=max(finished, earlier) + fresh + _shared_matrix(shape),
        activations=kept + making + 2 * _INDEX * tokens + _mask(shape, tokens, kind),
        copies=_copies(shape, kind, 1 if kind.recomputes else layers_left),
    )


def _bytes_in_the_making(kind: StepKind) -> int:
    """For each token and C of the width; eager, autocast makes a copy of the stream's gradient."""
    cast = 0 if kind.compiled or kind.precision == "float32" else kind.number_bytes
    return _FLOAT + cast + _NUMBERS_IN_THE_MAKING * kind.number_bytes


def _at_the_embedding(shape: ModelShape, kind: StepKind) -> MemoryNeeds:
    """Three gradients of the shared matrix: the head's, the embedding's, and their sum."""
    others = _FLOAT * shape.stored_parameter_count - _shared_matrix(shape)
    own = _shared_matrix(shape) if kind.accumulating else 0
    return _needs(
        "embedding", shape, kind, gradients=others + own + 3 * _shared_matrix(shape), activations=0
    )


def _needs(
    moment: Moment,
    shape: ModelShape,
    kind: StepKind,
    *,
    gradients: int,
    activations: int,
    logits: int = 0,
    copies: int = 0,
) -> MemoryNeeds:
    return MemoryNeeds(
        moment=moment,
        weights=_FLOAT * shape.stored_parameter_count,
        gradients=gradients,
        optimizer=_optimizer(shape, kind),
        activations=activations,
        logits=logits,
        copies=copies,
        workspace=_workspace(kind),
    )


def _optimizer(shape: ModelShape, kind: StepKind) -> int:
    """AdamW's two numbers for each weight."""
    each = _QUANTISED_STATE if kind.recipe == "leanest" else _FLOAT
    return int(2 * each * shape.stored_parameter_count)


def _earlier_gradients(shape: ModelShape, kind: StepKind) -> int:
    return _FLOAT * shape.stored_parameter_count if kind.accumulating else 0


def _shared_matrix(shape: ModelShape) -> int:
    """The gradient of the matrix that is embedding and head at once, always float32."""
    return _FLOAT * shape.padded_vocabulary * shape.width


def _mask(shape: ModelShape, tokens: int, kind: StepKind) -> int:
    """Where attention stays inside documents: a number for each pair of positions of a window, made once for
    all layers, and each position's document and place in it.
    """
    if kind.attention == "window":
        return 0
    return tokens * (shape.context * kind.number_bytes + 2 * _INDEX)


def _kept(shape: ModelShape, tokens: int, kind: StepKind, layers: int) -> int:
    """Of so many layers: everything, or only what enters each."""
    if kind.recomputes:
        return layers * tokens * shape.width * _FLOAT
    return layers * tokens * kept_by_block(shape, kind)


def _kept_anyway(shape: ModelShape) -> int:
    """What enters a block enters its first norm: one tensor."""
    return _FLOAT * shape.width


def _copies(shape: ModelShape, kind: StepKind, layers: int) -> int:
    """Matrices and biases of so many layers in bfloat16.

    Eager: autocast keeps them to the end of the forward pass, the way back what it needs. Compiled: what the
    way back needs, which is nothing where blocks run again.
    """
    if kind.precision == "float32" or (kind.compiled and kind.recomputes):
        return 0
    return layers * kind.number_bytes * (12 * shape.width**2 + 9 * shape.width)


def _copies_evaluated(shape: ModelShape, kind: StepKind) -> int:
    """Autocast keeps them to the end of the pass; compiled, each is gone when it has been used."""
    return 0 if kind.compiled else _copies(shape, kind, shape.layers)


def _head_copy(shape: ModelShape, kind: StepKind) -> int:
    if kind.precision == "float32":
        return 0
    return kind.number_bytes * shape.padded_vocabulary * shape.width


def _bytes_in_a_block(kind: StepKind) -> int:
    """For each token and C of the width, while a block runs without gradients: the stream inside it and more.

    Eager, a norm's result is float32 before it is cast.
    """
    if kind.compiled:
        return _FLOAT + _NUMBERS_OF_A_COMPILED_BLOCK * kind.number_bytes
    return 2 * _FLOAT + _NUMBERS_AT_THE_GELU * kind.number_bytes


def _chunk_logits(shape: ModelShape, tokens: int) -> int:
    return chunk_rows(tokens, shape.padded_vocabulary) * shape.padded_vocabulary


def _evaluated_logits(shape: ModelShape, tokens: int, kind: StepKind) -> int:
    """A chunk's; on the CPU also the logarithms of a slice, and float32 of it where it is not."""
    copies = 1 if kind.precision == "float32" else 2
    return _chunk_logits(shape, tokens) * kind.number_bytes + copies * _slice(shape, tokens, kind)


def _head_logits(shape: ModelShape, tokens: int, kind: StepKind) -> int:
    """A chunk's; on the CPU also a slice's gradient, the last one's, and float32 of it where it is not."""
    copies = 2 if kind.precision == "float32" else 3
    return _chunk_logits(shape, tokens) * kind.number_bytes + copies * _slice(shape, tokens, kind)


def _slice(shape: ModelShape, tokens: int, kind: StepKind) -> int:
    """One float32 copy of the rows of a chunk that are turned together: without Triton, which needs none."""
    if kind.device == "cuda":
        return 0
    rows = min(chunk_rows(tokens, shape.padded_vocabulary), slice_rows(shape.padded_vocabulary))
    return _FLOAT * rows * shape.vocabulary_size


def _workspace(kind: StepKind) -> int:
    return WORKSPACE_BYTES if kind.device == "cuda" else 0
