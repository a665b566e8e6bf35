"""How a split of tokens lies in files: names, widths and headers, as the peers have them.

    npy       train_000000.npy    128-byte header, then ids      numpy, build-nanogpt
    nanogpt   train.bin           ids alone, one file per split   nanoGPT
    llmc      train_000000.bin    1,024-byte header, then ids    llm.c, modded-nanogpt
    megatron  train.bin           ids alone, and train.idx       Megatron-LM

Ids are uint16 while the vocabulary has at most 65,536 entries, uint32 beyond. Beside each split
lies `documents_TRAIN.npy`, the position after each document's last token, as int64. Its upper case
hides it from build-nanogpt, which takes every file with "train" in its name for a shard.
A split of examples has `learnt_TRAIN.npy` too, its loss mask (`loss_mask.py`). No peer reads it.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lowtide.errors import UsageError
from lowtide.settings import Format

Split: TypeAlias = Literal["train", "val"]

TokenArray: TypeAlias = npt.NDArray[np.unsignedinteger]
EndArray: TypeAlias = npt.NDArray[np.int64]

FORMATS: tuple[Format, ...] = ("npy", "nanogpt", "llmc", "megatron")
SPLITS: tuple[Split, ...] = ("train", "val")
MANIFEST_NAME = "lowtide.json"
WORK_FOLDER = ".lowtide"
"""Folder for partial files and progress inside the output folder, until the manifest is written."""

NPY_HEADER_BYTES = 128
LLMC_HEADER_BYTES = 1024
LLMC_NARROW = (20240520, 1)
LLMC_WIDE = (20240801, 7)
LLMC_LARGEST_SHARD_TOKENS = 1_073_739_776
"""modded-nanogpt reads a shard in one call, and Linux reads at most 2 GiB - 4 KiB in one."""

LARGEST_NARROW_VOCABULARY = 1 << 16
LARGEST_VOCABULARY = 1 << 31
"""Megatron keeps wide ids as int32."""

DEFAULT_SHARD_TOKENS = 100_000_000
_LARGEST_SHARD_NUMBER = 999_999
_HEADER_BYTES: dict[Format, int] = {
    "npy": NPY_HEADER_BYTES,
    "nanogpt": 0,
    "llmc": LLMC_HEADER_BYTES,
    "megatron": 0,
}
_NUMBERED_SUFFIX: dict[Format, str] = {"npy": ".npy", "llmc": ".bin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """Everything that decides how a token stream becomes files."""

    format: Format
    vocabulary_size: int
    """Every id is smaller than this; it decides the width."""
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    """Tokens in a full shard. Formats with one file per split ignore it."""

    def __post_init__(self) -> None:
        if not 1 <= self.vocabulary_size <= LARGEST_VOCABULARY:
            raise UsageError(
                f"a vocabulary of {self.vocabulary_size} entries cannot be stored",
                remedy=f"use a tokenizer of 1 to {LARGEST_VOCABULARY} entries",
            )
        if self.shard_tokens < 1:
            raise UsageError(
                f"a shard cannot hold {self.shard_tokens} tokens",
                remedy="pass `--shard-tokens 100M` or any count above zero",
            )
        if self.format == "llmc" and self.shard_tokens > LLMC_LARGEST_SHARD_TOKENS:
            raise UsageError(
                f"llm.c shards hold at most {LLMC_LARGEST_SHARD_TOKENS} tokens, "
                f"not {self.shard_tokens}",
                remedy=f"pass `--shard-tokens {LLMC_LARGEST_SHARD_TOKENS}` or less",
            )

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """uint16 or uint32, little-endian, whatever the machine."""
        narrow = self.vocabulary_size <= LARGEST_NARROW_VOCABULARY
        return np.dtype("<u2" if narrow else "<u4")

    @property
    def token_bytes(self) -> int:
        """Bytes per id."""
        return self.dtype.itemsize

    @property
    def header_bytes(self) -> int:
        """Bytes before the first id of a shard."""
        return _HEADER_BYTES[self.format]

    @property
    def file_tokens(self) -> int | None:
        """Tokens after which a new file begins; None where a split is one file."""
        return self.shard_tokens if self.format in _NUMBERED_SUFFIX else None

    def file_bytes(self, tokens: int) -> int:
        """Size of a shard that holds `tokens` ids, header included."""
        return self.header_bytes + tokens * self.token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """A file of ids whose size is known to fit its count."""

    path: Path
    header_bytes: int
    tokens: int
    dtype: np.dtype[np.unsignedinteger]
    layout: ShardLayout | None = None
    """Set for a file of ours; None for a peer's, whose header was read when it was found."""

    @property
    def header(self) -> bytes:
        """The header that a file of ours must have; empty for a peer's."""
        return shard_header(self.layout, self.tokens) if self.layout else b""

    @property
    def file_bytes(self) -> int:
        """Size of header and ids together."""
        return self.header_bytes + self.tokens * self.dtype.itemsize

    @property
    def payload_bytes(self) -> int:
        """Size of the ids alone."""
        return self.tokens * self.dtype.itemsize


def shard_header(layout: ShardLayout, tokens: int) -> bytes:
    """The header of a shard of `tokens` ids; empty for headerless formats."""
    if layout.format == "npy":
        return npy_header(layout.dtype.str, tokens)
    if layout.format == "llmc":
        return llmc_header(layout.token_bytes, tokens)
    return b""


def npy_header(dtype_text: str, count: int) -> bytes:
    """Exactly what `np.save` writes before a 1-D array; 128 bytes for any count below 10**21.

    The length never changes, so a streaming writer can fill in the count at the end.
    """
    text = f"{{'descr': '{dtype_text}', 'fortran_order': False, 'shape': ({count},), }}"
    padded = text.ljust(NPY_HEADER_BYTES - 11).encode("ascii") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded


def llmc_header(token_bytes: int, tokens: int) -> bytes:
    """256 int32: magic, version, count, zeros. The magic distinguishes uint32 from uint16."""
    magic, version = LLMC_NARROW if token_bytes == 2 else LLMC_WIDE
    return struct.pack("<3i", magic, version, tokens).ljust(LLMC_HEADER_BYTES, b"\0")


def shard_name(layout: ShardLayout, split: Split, number: int) -> str:
    """`shard_name(npy, "train", 7)` is `"train_000007.npy"`: six digits, so that names sort."""
    suffix = _NUMBERED_SUFFIX.get(layout.format)
    if suffix is None:
        assert number == 0, "one file per split"
        return f"{split}.bin"
    if number > _LARGEST_SHARD_NUMBER:
        raise UsageError(
            f"more than {_LARGEST_SHARD_NUMBER + 1} shards of {layout.shard_tokens} tokens",
            remedy="pass a larger `--shard-tokens`",
        )
    return f"{split}_{number:06d}{suffix}"


def shard_number(layout: ShardLayout, split: Split, name: str) -> int | None:
    """The inverse of `shard_name`; None for a name that is not a shard of this split."""
    suffix = _NUMBERED_SUFFIX.get(layout.format)
    if suffix is None:
        return 0 if name == f"{split}.bin" else None
    match = re.fullmatch(rf"{split}_(\d{{6}}){re.escape(suffix)}", name, re.ASCII)
    return int(match.group(1)) if match else None


def documents_name(split: Split) -> str:
    """The split's document index: `documents_TRAIN.npy`."""
    return f"documents_{split.upper()}.npy"


def documents_header(count: int) -> bytes:
    """A document index is a plain 1-D int64 npy: `np.load` opens it."""
    return npy_header("<i8", count)


def learnt_name(split: Split) -> str:
    """The loss mask of a split of examples: `learnt_TRAIN.npy`."""
    return f"learnt_{split.upper()}.npy"


def loss_mask_bytes(tokens: int) -> int:
    """Size of a loss mask of one bit per token, without the header."""
    return -(-tokens // 8)


def loss_mask_header(tokens: int) -> bytes:
    """A loss mask is a plain 1-D uint8 npy: `np.unpackbits(np.load(…), bitorder="little")`."""
    return npy_header("|u1", loss_mask_bytes(tokens))


def companion_name(layout: ShardLayout, split: Split) -> str | None:
    """The one file a format needs besides its shards: Megatron's `train.idx`."""
    return f"{split}.idx" if layout.format == "megatron" else None
