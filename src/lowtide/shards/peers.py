"""Recognise another tool's files at a path: `.npy` shards, nanoGPT, llm.c or Megatron files.

A file's own first bytes decide, then its neighbours, then its name. Splits are distinguished by the word "val",
"valid", "validation" or "test" in the name; a file with none of them belongs to train.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError

import numpy as np

from lowtide.errors import DataError, UsageError, VerificationError
from lowtide.settings import Format
from lowtide.shards.layout import (
    LARGEST_NARROW_VOCABULARY,
    LLMC_HEADER_BYTES,
    LLMC_NARROW,
    LLMC_WIDE,
    TokenFile,
)
from lowtide.shards.megatron import MegatronIndex, open_index
from lowtide.shards.payload import read_exactly, reading

_LOOKED_AT_BYTES = 128
_LOOKED_AT_IDS = 1 << 15
_FEWEST_TELLING_IDS, _MANY_TELLING_IDS = 16, 64
_PLAIN_NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00\x76\x00\{'descr': '(<u2|<u4|<i4)', 'fortran_order': False, "
    rb"'shape': \((\d{1,20}),\), \} *\n"
)
_NPY_MAGIC = b"\x93NUMPY"
_READABLE_DTYPES = {"<u2": "<u2", "<u4": "<u4", "<i4": "<u4"}
_LLMC_DTYPES = {LLMC_NARROW: "<u2", LLMC_WIDE: "<u4"}
_LLMC_MAGICS = {magic for magic, _ in _LLMC_DTYPES}
_SPLIT_WORDS = {"val": "val", "valid": "val", "validation": "val", "test": "test"}
_ONE_FILE_PER_SPLIT: tuple[Format, ...] = ("nanogpt", "megatron")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSplit:
    """The files that make up one split, in order."""

    name: str
    format: Format
    files: tuple[TokenFile, ...]
    index: MegatronIndex | None = None


def find_peer_splits(path: Path, vocabulary_size: int | None) -> list[PeerSplit]:
    """The splits at a file or folder, train first; UsageError when there are none, or a mixture."""
    found = [_recognise(candidate, vocabulary_size) for candidate in sorted(_candidates(path))]
    if not found:
        raise UsageError(
            f"{path} holds no token files",
            remedy="name a folder with `.npy` or `.bin` files, or one such file",
        )
    examples = {one.format: one.files[0].path.name for one in found}
    if len(examples) > 1:
        listed = ", ".join(f"{name} is {form}" for form, name in sorted(examples.items()))
        raise UsageError(
            f"{path} mixes formats: {listed}",
            remedy="name one file, or move the formats into folders of their own",
        )
    if len({one.files[0].dtype.itemsize for one in found}) > 1:
        raise UsageError(
            f"{path} mixes files of uint16 and uint32 ids",
            remedy="name one file, or move them into folders of their own",
        )
    return _join_shards(found)


def split_of(name: str) -> str:
    """`split_of("edufineweb_val_000000.npy")` is `"val"`."""
    words = set(re.split("[^a-z]+", name.lower()))
    return next((split for word, split in _SPLIT_WORDS.items() if word in words), "train")


def _candidates(path: Path) -> Iterable[Path]:
    """Token files by their suffix, without our document index and Megatron's `.idx`."""
    if path.is_file():
        return [path.with_suffix(".bin") if path.suffix == ".idx" else path]
    with reading(path):
        return [
            entry
            for entry in path.iterdir()
            if entry.suffix in {".npy", ".bin"}
            and not entry.is_dir()  # a link that leads nowhere is a shard that is missing
            and not entry.name.startswith((".", "documents_"))
        ]


def _join_shards(found: list[PeerSplit]) -> list[PeerSplit]:
    """Join numbered shards of a split; formats with one file per split get a split per file."""
    joined: dict[str, PeerSplit] = {}
    names = [one.name for one in found]
    for one in found:
        alone = one.format in _ONE_FILE_PER_SPLIT and names.count(one.name) > 1
        name = one.files[0].path.stem if alone else one.name
        before = joined[name].files if name in joined else ()
        joined[name] = replace(one, name=name, files=before + one.files)
    return sorted(joined.values(), key=lambda split: (split.name != "train", split.name))


def _recognise(path: Path, vocabulary_size: int | None) -> PeerSplit:
    """One file as a split of its own."""
    with reading(path):
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise UsageError(f"{path} is not a plain file", remedy="move it out of the folder")
    with reading(path), path.open("rb") as file:
        start = file.read(_LOOKED_AT_BYTES)
        size_bytes = os.fstat(file.fileno()).st_size
    name = split_of(path.name)
    if start.startswith(_NPY_MAGIC):
        return PeerSplit(name=name, format="npy", files=(_npy_file(path, start, size_bytes),))
    if path.suffix == ".npy":
        raise DataError(f"{path} is not an npy file", remedy="write it again with `numpy.save`")
    if path.with_suffix(".idx").is_file():
        index = open_index(path, size_bytes)
        files = (_bare_file(path, index.dtype, size_bytes),)
        return PeerSplit(name=name, format="megatron", files=files, index=index)
    if len(start) >= 12 and struct.unpack("<i", start[:4])[0] in _LLMC_MAGICS:
        return PeerSplit(name=name, format="llmc", files=(_llmc_file(path, start, size_bytes),))
    wide = vocabulary_size is not None and vocabulary_size > LARGEST_NARROW_VOCABULARY
    bare = _bare_file(path, "<u4" if wide else "<u2", size_bytes)
    if not wide:
        _refuse_wide(bare)
    return PeerSplit(name=name, format="nanogpt", files=(bare,))


def _npy_file(path: Path, start: bytes, size_bytes: int) -> TokenFile:
    plain = _PLAIN_NPY_HEADER.fullmatch(start)
    if plain:  # as numpy and lowtide write it: a thousand shards must open at once
        dtype_text, tokens = plain.group(1).decode(), int(plain.group(2))
        return _sized(path, len(start), tokens, _READABLE_DTYPES[dtype_text], size_bytes)
    try:
        with reading(path), path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, dtype = read_header(file)
            header_bytes = file.tell()
    except (ValueError, KeyError, SyntaxError, TokenError) as error:
        raise DataError(
            f"{path} has a damaged npy header: {error}", remedy="write it again with `numpy.save`"
        ) from error
    if len(shape) != 1 or dtype.str not in _READABLE_DTYPES:
        raise DataError(
            f"{path} holds {dtype} in {len(shape)} dimension{'' if len(shape) == 1 else 's'}, "
            "not a row of token ids as training reads them",
            remedy="save a 1-D array of uint16, uint32 or int32, such as `array.astype(np.uint16)`",
        )
    return _sized(path, header_bytes, shape[0], _READABLE_DTYPES[dtype.str], size_bytes)


def _llmc_file(path: Path, start: bytes, size_bytes: int) -> TokenFile:
    magic, version, tokens = struct.unpack("<3i", start[:12])
    dtype = _LLMC_DTYPES.get((magic, version))
    if dtype is None:
        raise DataError(
            f"{path} begins as llm.c's files do, but has version {version}",
            remedy="write it again with llm.c's data_common.py, or with `lowtide export --to llmc`",
        )
    return _sized(path, LLMC_HEADER_BYTES, max(0, tokens), dtype, size_bytes)


def _bare_file(path: Path, dtype: str, size_bytes: int) -> TokenFile:
    return _sized(path, 0, -(-size_bytes // np.dtype(dtype).itemsize), dtype, size_bytes)


def _refuse_wide(file: TokenFile) -> None:
    """DataError where every second id is nearly zero: ids of 4 or 8 bytes, read as ids of 2.

    No text looks like that: every second id of 2 bytes would have to be one of the first four.
    """
    count = min(file.tokens, _LOOKED_AT_IDS) // 2 * 2
    if count < _FEWEST_TELLING_IDS:
        return
    middle = (file.tokens - count) // 4 * 2 * file.dtype.itemsize
    ids = np.frombuffer(read_exactly(file.path, middle, count * file.dtype.itemsize), file.dtype)
    most = 4 if count >= _MANY_TELLING_IDS else 1
    if ids[1::2].max() < most and ids[::2].max() >= 4:
        raise DataError(
            f"{file.path} looks like ids of 4 bytes or more, and would be read as ids of 2",
            remedy="name the tokenizer that made it, if its vocabulary is above 65,536; else save the "
            "ids as uint16, or with `numpy.save`, which tells their width",
        )


def _sized(path: Path, header_bytes: int, tokens: int, dtype: str, found_bytes: int) -> TokenFile:
    """The file, if its size is what its header says; VerificationError otherwise."""
    file = TokenFile(path=path, header_bytes=header_bytes, tokens=tokens, dtype=np.dtype(dtype))
    if found_bytes != file.file_bytes:
        raise VerificationError(
            f"{path} has {found_bytes} bytes, {tokens} ids of {file.dtype} need {file.file_bytes}",
            remedy=f"put {path.name} back from a copy, or name the tokenizer that made it",
        )
    return file
