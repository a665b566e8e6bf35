"""Compare the encoder of a run with the reference before the first token is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from lowtide.events import Listener, Note
from lowtide.memory.allocator import give_back
from lowtide.source.stream import Block, Cursor, read_blocks
from lowtide.stages.prepare import Prepared, on_reference
from lowtide.tokenizer.encode import SAMPLE_BYTES, Encoder, find_disagreement, sample_pieces
from lowtide.units import format_bytes


def prove_encoder(
    prepared: Prepared,
    blocks: Iterator[Block],
    listen: Listener,
    *,
    resumed: bool,
    heed: Callable[[Iterator[Block]], Iterator[Block]] = iter,
) -> tuple[Prepared, Encoder, Iterator[Block]]:
    """Make an encoder, compare it with the reference on the front of the input; also, all blocks still to read.

    A resumed run uses the front of the whole input too, and every budget the same length of it, so that they
    decide alike. If the two differ, the reference encodes everything. `heed` wraps blocks that are read for the
    sample alone, so that a stop ends that too.
    """
    settings = prepared.recipe.encode
    encoder = Encoder(settings, allowance_bytes=prepared.allowances.reference_allowance_bytes)
    name = prepared.vocabulary.name
    why = encoder.why_reference
    if why is None:
        front, blocks = _read_front(prepared, blocks, resumed, heed)
        pieces = sample_pieces(encoder, settings, front)
        found = find_disagreement(encoder, settings, pieces)
        if found is None:
            give_back()
            if pieces:
                compared = format_bytes(sum(map(len, pieces)))
                reference = "tiktoken" if settings.vocabulary.kind == "ranks" else "tokenizers"
                listen(Note(text=f"ids equal those of {reference} on {compared} of this input"))
            return prepared, encoder, blocks
        why = f"gigatoken's ids are not the reference's, at {found[:60]!r}"
        prepared = on_reference(prepared, why)
        encoder = Encoder(
            prepared.recipe.encode, allowance_bytes=prepared.allowances.reference_allowance_bytes
        )
        give_back()
    else:
        prepared = on_reference(prepared, why)
    text = f"{name} runs on the reference encoder, which is much slower: {why}"
    listen(Note(text=text, level="warning"))
    return prepared, encoder, blocks


def _read_front(
    prepared: Prepared,
    blocks: Iterator[Block],
    resumed: bool,
    heed: Callable[[Iterator[Block]], Iterator[Block]],
) -> tuple[bytes, Iterator[Block]]:
    """The first text of the input, and all blocks still to encode, those that were read for it included."""
    source = blocks
    if resumed:
        source = heed(read_blocks(prepared.inputs, prepared.read, start=Cursor(file=0, position=0)))
    taken: list[Block] = []
    while sum(len(block.text) for block in taken) < SAMPLE_BYTES:
        block = next(source, None)
        if block is None:
            break
        taken.append(block)
    front = b"".join(block.text for block in taken)[:SAMPLE_BYTES]
    return front, blocks if resumed else itertools.chain(taken, blocks)
