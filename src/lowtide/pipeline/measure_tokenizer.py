"""How good a tokenizer is: bytes a token on text it has not seen, beside gpt2 on the same text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.memory.allocator import give_back
from lowtide.pipeline.held_out_text import HELD_OUT_NAME
from lowtide.pipeline.train_prepare import TrainPrepared
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.sample import sample_inputs
from lowtide.tokenizer.byte_pairs import BytePairs
from lowtide.tokenizer.encode import Encoder, EncodeSettings, encoder_bytes
from lowtide.tokenizer.vocabulary import Vocabulary, from_json, load_vocabulary
from lowtide.tokenizer.write_files import tokenizer_json
from lowtide.units import KIB, MIB

_SAMPLES = 16
_SAMPLE_BYTES = 256 * KIB
_LARGEST_BLOCK_BYTES = MIB
"""A longer stretch without a safe cut would take an encoder 33 times its size: it is left out."""
_CACHE_BYTES = 48 * MIB
"""What an encoder may keep of 4 to 16 MiB of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Bytes a token, by tokenizer, on one text."""

    text: str
    """What was measured on, in words."""
    text_bytes: int
    learnt: tuple[float, ...]
    """One for each vocabulary size."""
    gpt2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """No comparison was made."""

    why: str


def compare_with_gpt2(
    folder: Path,
    prepared: TrainPrepared,
    vocabularies: Sequence[BytePairs],
    *,
    held_out_bytes: int,
    after_each: Callable[[], None],
) -> Comparison | NotCompared:
    """On held-out text where there is some, else on a sample of the corpus. `after_each` is called whenever
    an encoder has done its part."""
    if prepared.reads_stdin and not held_out_bytes:
        return NotCompared(why="the text from standard input is gone")
    gpt2 = load_vocabulary("gpt2")
    learnt = [from_json(tokenizer_json(pairs), name="learnt") for pairs in vocabularies]
    most = max(encoder_bytes(vocabulary) for vocabulary in (gpt2, *learnt)) + _CACHE_BYTES
    if most > prepared.allowances.merge_bytes:
        return NotCompared(why="the budget has no room for an encoder")
    blocks = list(_held_out(folder, held_out_bytes) if held_out_bytes else _sample(prepared))
    delimiter = prepared.read.delimiter
    text_bytes = sum(len(block) - block.count(delimiter) * len(delimiter) for block in blocks)
    if not text_bytes:
        return NotCompared(why="there is no text to measure on")
    rates = [
        text_bytes / _count_tokens(one, delimiter, blocks, after_each) for one in (*learnt, gpt2)
    ]
    return Comparison(
        text="held-out text" if held_out_bytes else "a sample of the training text",
        text_bytes=text_bytes,
        learnt=tuple(rates[:-1]),
        gpt2=rates[-1],
    )


def _held_out(folder: Path, size: int) -> Iterator[bytes]:
    with (folder / WORK_FOLDER / HELD_OUT_NAME).open("rb") as file:
        yield file.read(size)


def _sample(prepared: TrainPrepared) -> Iterator[bytes]:
    read = replace(prepared.read, block_bytes=_SAMPLE_BYTES)
    for sample in sample_inputs(prepared.inputs, read, count=_SAMPLES):
        for block in sample.blocks:
            if len(block.text) <= _LARGEST_BLOCK_BYTES:
                yield block.text


def _count_tokens(
    vocabulary: Vocabulary,
    delimiter: bytes,
    blocks: Sequence[bytes],
    after_each: Callable[[], None],
) -> int:
    """Tokens without those that end documents."""
    settings = EncodeSettings(vocabulary=vocabulary, delimiter=delimiter, special_in_text="token")
    encoder = Encoder(settings)
    count = 0
    for block in blocks:
        documents = block.count(delimiter)
        count += len(encoder.encode(block, document_count=documents).ids) - documents
    after_each()
    del encoder
    give_back()
    return max(1, count)
