"""How good a tokenizer is: bytes per token on text it has not seen, compared with gpt2 on the same text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.memory.allocator import give_back
from lowtide.shards.layout import WORK_FOLDER
from lowtide.source.sample import sample_inputs
from lowtide.stages.held_out_text import HELD_OUT_NAME
from lowtide.stages.plan_tokenizer import TokenizerPlan
from lowtide.tokenizer.encode import Encoder, EncodeSettings, encoder_bytes_for
from lowtide.tokenizer.vocabulary import Vocabulary
from lowtide.units import KIB, MIB

_SAMPLES = 16
_SAMPLE_BYTES = 256 * KIB
_LARGEST_BLOCK_BYTES = MIB
"""A longer stretch without a safe cut is left out: an encoder would take 33 times its size."""
_CACHE_BYTES = 64 * MIB
"""Memory for the text, and for the words that an encoder keeps of it."""
_GPT2_TOKENS = 50_257


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Bytes per token of each tokenizer on one text."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredText:
    """The text that every vocabulary is measured on."""

    text: str
    blocks: tuple[bytes, ...]
    delimiter: bytes

    @property
    def text_bytes(self) -> int:
        """Size of the text without delimiters."""
        ends = sum(block.count(self.delimiter) for block in self.blocks)
        return sum(map(len, self.blocks)) - ends * len(self.delimiter)

    def measure(self, vocabulary: Vocabulary, after_each: Callable[[], None]) -> float:
        """Bytes per token. `after_each` is called after every block, while the encoder is in memory."""
        settings = EncodeSettings(
            vocabulary=vocabulary, delimiter=self.delimiter, special_in_text="token"
        )
        encoder = Encoder(settings)
        count = 0
        for block in self.blocks:
            documents = block.count(self.delimiter)
            count += len(encoder.encode(block, document_count=documents).ids) - documents
            after_each()
        del encoder
        give_back()
        return self.text_bytes / max(1, count)


def choose_text(
    folder: Path, prepared: TokenizerPlan, *, held_out_bytes: int
) -> MeasuredText | NotCompared:
    """Held-out text if there is some, else a sample of the corpus."""
    if prepared.stream is not None and not held_out_bytes:
        return NotCompared(why=f"the text of {prepared.stream.name} is gone")
    most_tokens = max(_GPT2_TOKENS, *prepared.settings.vocab_size)
    if encoder_bytes_for(most_tokens) + _CACHE_BYTES > prepared.allowances.merge_bytes:
        return NotCompared(why="the budget has no room for an encoder")
    delimiter = prepared.read.delimiter
    held_out = _held_out(folder, delimiter, held_out_bytes) if held_out_bytes else _sample(prepared)
    text = MeasuredText(
        text="held-out text" if held_out_bytes else "a sample of the training text",
        blocks=tuple(held_out),
        delimiter=delimiter,
    )
    if not text.text_bytes:
        return NotCompared(why="there is no text to measure on")
    return text


def _held_out(folder: Path, delimiter: bytes, size: int) -> Iterator[bytes]:
    """Whole documents in blocks, without those that are longer than a block."""
    with (folder / WORK_FOLDER / HELD_OUT_NAME).open("rb") as file:
        documents = file.read(size).split(delimiter)
    block = bytearray()
    for document in documents:
        if len(document) > _LARGEST_BLOCK_BYTES:
            continue
        if len(block) + len(document) > _LARGEST_BLOCK_BYTES:
            yield bytes(block)
            block.clear()
        block += document + delimiter
    yield bytes(block)


def _sample(prepared: TokenizerPlan) -> Iterator[bytes]:
    read = replace(prepared.read, block_bytes=_SAMPLE_BYTES)
    for sample in sample_inputs(prepared.inputs, read, count=_SAMPLES):
        for block in sample.blocks:
            if len(block.text) <= _LARGEST_BLOCK_BYTES:
                yield block.text
