"""Find the tokens that a loader will read at a path: a dataset, one of its splits, or a share of one.

A folder or file of lowtide, nanoGPT, llm.c, Megatron or numpy is recognised by its contents. Where there is
only text, the error names the command that makes the tokens.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import cast

import xxhash

from lowtide.dataset.settings import Settings
from lowtide.errors import LowtideError, UsageError, VerificationError
from lowtide.shards.documents import DocumentIndex, ScannedDocuments, StoredDocuments
from lowtide.shards.layout import (
    MANIFEST_NAME,
    NPY_HEADER_BYTES,
    WORK_FOLDER,
    Split,
    TokenFile,
    documents_header,
    loss_mask_bytes,
)
from lowtide.shards.loss_mask import LossMask
from lowtide.shards.manifest import SplitRecord, TokenizerRecord, file_names, read_manifest
from lowtide.shards.megatron import MegatronIndex
from lowtide.shards.payload import read_exactly, reading
from lowtide.shards.read import Dataset, TokenSplit
from lowtide.shards.read import open_dataset as open_at
from lowtide.storage.fingerprint import digest_file
from lowtide.storage.paths import as_path
from lowtide.units import KIB, format_count

RUN_RECORD = "lowtide-run.json"
"""Name of the record in the folder of a training run."""
_TOKEN_SUFFIXES = frozenset({".npy", ".bin", ".idx"})
_SNIFFED_BYTES = 8 * KIB
_LOOKED_AT_BYTES = 4 * KIB
_LOOKED_AT_FILES = 16
TOKENIZER_MANIFEST = "lowtide-tokenizer.json"
MODEL_RECORD = "lowtide-export.json"
"""Name of the record in the folder of an exported model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTokens:
    """A range of one split."""

    dataset: Dataset
    split: TokenSplit
    start: int
    tokens: int
    file: TokenFile | None = None
    """The file that was named, where a manifest beside it names it too."""

    @property
    def record(self) -> SplitRecord | None:
        """The manifest's record of the split; None for a peer's files."""
        manifest = self.dataset.manifest
        return manifest.splits[cast(Split, self.split.name)] if manifest else None


def open_dataset(path: str | Path, *, tokenizer: str | None = None) -> Dataset:
    """Open a dataset of lowtide or a peer's files. A peer's files may need the tokenizer.

    Ids: `lowtide.open_dataset("tokens").splits["train"].read(0, 1025)`.
    """
    place = as_path(path)
    refuse_what_is_no_dataset(place)
    named = tokenizer_record(tokenizer)
    dataset = open_at(place, tokenizer=named)
    made_by = dataset.tokenizer
    if named and made_by and named.fingerprint != made_by.fingerprint:
        raise UsageError(
            f"{path} was made by the tokenizer {made_by.name}, not by {tokenizer}",
            remedy="leave `--tokenizer` out: it is for files that do not name theirs",
        )
    return dataset


def find_tokens(settings: Settings) -> FoundTokens:
    """The tokens of a split; with `val_fraction`, train is the front of the tokens and val the rest."""
    splits = find_splits(settings.path, tokenizer=settings.tokenizer)
    if settings.val_fraction is None:
        return _named_split(splits, settings)
    whole = _only_split(splits, settings, settings.val_fraction)
    kept = round(1 - settings.val_fraction, 12)  # 1 - 0.9 is 0.09999999999999998
    border = int(whole.tokens * kept)  # the same as `data[:int(n * 0.9)]`
    if settings.split == "train":
        return replace(whole, tokens=border)
    return replace(whole, start=whole.start + border, tokens=whole.tokens - border)


def find_splits(path: str | Path, *, tokenizer: str | None = None) -> dict[str, FoundTokens]:
    """The splits at a path by name, each whole. A file is a split, and train has its val beside it.

    That is the val of the manifest beside the file that names it; or a peer's `val.bin` beside `train.bin`.
    """
    place = as_path(path)
    named = _find_in_dataset(place, tokenizer)
    if named is not None:
        own = {named.split.name: named}
        return _whole_splits(named.dataset) | own if "train" in own else own
    dataset = open_dataset(place, tokenizer=tokenizer)
    beside = place.with_name("val.bin")
    if place.name in ("train.bin", "train.idx") and place.is_file() and beside.is_file():
        val = open_dataset(beside, tokenizer=tokenizer)
        if val.format == dataset.format:
            return _whole_splits(dataset) | _whole_splits(val)
    return _whole_splits(dataset)


def _find_in_dataset(place: Path, tokenizer: str | None) -> FoundTokens | None:
    """The tokens of a file that the manifest beside it names; None for all else."""
    with reading(place):
        if not place.is_file() or not (place.parent / MANIFEST_NAME).is_file():
            return None
    name = f"{place.stem}.bin" if place.suffix == ".idx" else place.name
    if name not in file_names(read_manifest(place.parent)):
        return None
    dataset = open_dataset(place.parent, tokenizer=tokenizer)
    for split in dataset.splits.values():
        start = 0
        for file in split.files:
            if file.path.name == name:
                return FoundTokens(
                    dataset=dataset, split=split, start=start, tokens=file.tokens, file=file
                )
            start += file.tokens
    return None  # an index


def _whole_splits(dataset: Dataset) -> dict[str, FoundTokens]:
    return {
        name: FoundTokens(dataset=dataset, split=split, start=0, tokens=split.tokens)
        for name, split in dataset.splits.items()
    }


def tokenizer_record(source: str | None) -> TokenizerRecord | None:
    """The record of a tokenizer that the user named; None if none was."""
    if source is None:
        return None
    from lowtide.tokenizer.vocabulary import load_vocabulary

    vocabulary = load_vocabulary(source)
    return TokenizerRecord(
        name=vocabulary.name,
        fingerprint=vocabulary.fingerprint,
        vocabulary_size=vocabulary.size,
        end_of_text=vocabulary.end_of_text,
        special_tokens=vocabulary.special_tokens,
    )


def stored_documents(found: FoundTokens) -> tuple[DocumentIndex, Path | None]:
    """The split's documents by look-up, verified; where only a scan finds them, from a temporary file.

    The caller removes that file.
    """
    split, documents = found.split, found.split.documents
    if documents is None:
        raise UsageError(
            f"nothing says where the documents of split {split.name} end",
            remedy="name the tokenizer that made the tokens: `tokenizer='gpt2'`, or `--tokenizer gpt2`",
        )
    if not isinstance(documents, ScannedDocuments):
        _verify_index(found, documents)
        return documents, None
    descriptor, name = tempfile.mkstemp(prefix="lowtide-documents-", suffix=".npy")
    count = 0
    with os.fdopen(descriptor, "wb") as file:
        file.write(documents_header(0))
        for ends in documents.ends():
            file.write(ends.astype("<i8").tobytes())
            count += len(ends)
    return StoredDocuments(path=Path(name), count=count), Path(name)


def _verify_index(found: FoundTokens, documents: DocumentIndex) -> None:
    """Raise VerificationError unless the index is what was written, or a peer's fits its tokens."""
    problems = documents.problems() if isinstance(documents, MegatronIndex) else []
    index = found.record.index if found.record else None
    if index:
        found_digest = digest_file(
            found.dataset.path / index.name, NPY_HEADER_BYTES, 8 * index.documents
        )
        if found_digest != index.digest:
            problems.append(f"{index.name}: its ends are not those that were written")
    if problems:
        raise VerificationError(
            problems[0], remedy="put the index back from a copy, or make the dataset again"
        )


def verified_loss_mask(found: FoundTokens) -> LossMask | None:
    """The split's loss mask; None for text. VerificationError unless it is what was written."""
    mask = found.split.loss_mask
    if mask is None:
        return None
    length = loss_mask_bytes(mask.tokens)
    if digest_file(mask.path, NPY_HEADER_BYTES, length) != digest_loss_mask(found):
        raise VerificationError(
            f"{mask.path.name}: its bits are not those that were written",
            remedy="put the file back from a copy, or make the dataset again",
        )
    return mask


def count_targets(found: FoundTokens) -> int | None:
    """Target tokens in the range, from the manifest or by a pass over the loss mask; None for text."""
    mask, record = found.split.loss_mask, found.record
    if mask is None:
        return None
    if record and record.learnt and found.tokens == mask.tokens:
        return record.learnt.tokens
    return mask.count(found.start, found.start + found.tokens)


def digest_loss_mask(found: FoundTokens) -> str | None:
    """Digest of the loss mask; None for text."""
    return found.record.learnt.digest if found.record and found.record.learnt else None


def digest_documents(found: FoundTokens) -> str | None:
    """What identifies the document ends, a digest where a file stores them; None if nothing knows them."""
    if found.record and found.record.index:
        return found.record.index.digest
    documents = found.split.documents
    if isinstance(documents, MegatronIndex):
        return digest_file(documents.path, 0, documents.path.stat().st_size)
    tokenizer = found.dataset.tokenizer
    return f"id {tokenizer.end_of_text}, {found.dataset.eot}" if tokenizer else None


def digest_tokens(found: FoundTokens) -> str:
    """Digest of the manifest's digests; for a peer's or a named file, of sizes and both ends of some files."""
    state = xxhash.xxh3_128()
    if found.record and found.file is None:
        state.update("".join(shard.digest for shard in found.record.shards).encode())
        return state.hexdigest()
    files = found.split.files if found.file is None else (found.file,)
    state.update(",".join(str(file.tokens) for file in files).encode())
    for file in files[:: -(-len(files) // _LOOKED_AT_FILES)]:
        length = min(_LOOKED_AT_BYTES, file.payload_bytes)
        state.update(read_exactly(file.path, file.header_bytes, length))
        state.update(read_exactly(file.path, file.file_bytes - length, length))
    return state.hexdigest()


def _named_split(splits: Mapping[str, FoundTokens], settings: Settings) -> FoundTokens:
    name = settings.split
    found = splits.get(name)
    if found is not None and found.tokens:
        return found
    others = [other for other, one in splits.items() if one.tokens]
    what = "is empty" if found is not None else "is not there"
    remedy = (
        f"pass `split={others[0]!r}` (`--split {others[0]}`)"
        if others
        else "make the dataset again from more text"
    )
    if others == ["train"] and name == "val":
        remedy = (
            "pass `val_fraction=0.1` here and for train, which takes the last tenth; or tokenize again "
            "with a larger `--val`"
        )
    raise UsageError(
        f"split {name!r} of {settings.path} {what}; it has {', '.join(others) or 'no tokens'}",
        remedy=remedy,
    )


def _only_split(
    splits: Mapping[str, FoundTokens], settings: Settings, val_fraction: float
) -> FoundTokens:
    """The split to take a share of: the only one of a folder, or the file that is named."""
    if not 0 < val_fraction < 1:
        raise UsageError(
            f"`val_fraction` is {val_fraction}, not between 0 and 1",
            remedy="pass `val_fraction=0.1`",
        )
    if settings.split not in ("train", "val"):
        raise UsageError(
            f"`val_fraction` makes train and val, not {settings.split!r}",
            remedy="pass `split='train'` or `split='val'`",
        )
    filled = [found for found in splits.values() if found.tokens]
    if len(filled) > 1 and Path(settings.path).is_file():
        return filled[0]
    if len(filled) != 1:
        sizes = ", ".join(f"{one.split.name} ({format_count(one.tokens)} tokens)" for one in filled)
        raise UsageError(
            f"{settings.path} has splits of its own: {sizes or 'all empty'}",
            remedy="leave `val_fraction` out, or name one file",
        )
    return filled[0]


def refuse_what_is_no_dataset(path: Path) -> None:
    """Raise UsageError for the folder of a run, a tokenizer or a model, and for text; with what to run."""
    with reading(path):
        if (path / MANIFEST_NAME).is_file():
            return
        shown = quote(str(path))
        if (path / RUN_RECORD).exists():
            raise UsageError(
                f"{path} holds a training run and no tokens",
                remedy=f"`lowtide sample {shown} --prompt Once` generates text, `lowtide report {shown}` shows "
                f"its steps, and `lowtide export {shown} --to huggingface --out model` exports the model",
            )
        if (path / TOKENIZER_MANIFEST).exists():
            raise UsageError(
                f"{path} holds a tokenizer and no tokens",
                remedy=f"make tokens with `lowtide tokenize INPUT... --tokenizer {shown} --out tokens`; the "
                "`train-tokenizer` that made it, run again, compares its files with their digests",
            )
        if (path / MODEL_RECORD).exists():
            raise UsageError(
                f"{path} holds an exported model and no tokens",
                remedy=f"`lowtide export RUN --to huggingface --out {shown}`, run again, compares its files "
                "with their digests; for tokens, name what RUN was trained on",
            )
        # An unfinished dataset may hold no tokens yet; opening it says so.
        if not (path / WORK_FOLDER).is_dir() and _holds_only_text(path):
            raise UsageError(
                f"{path} holds text and no tokens",
                remedy=f"make them with `lowtide tokenize {shown} --out tokens` (of rows, `--column` names the "
                "text, and `--examples` reads chats), then open `tokens`",
            )


def _holds_only_text(path: Path) -> bool:
    if path.is_file():
        return path.suffix not in _TOKEN_SUFFIXES and _looks_like_text(path)
    if not path.is_dir() or any(entry.suffix in _TOKEN_SUFFIXES for entry in path.iterdir()):
        return False
    return _has_inputs(path)


def _has_inputs(folder: Path) -> bool:
    from lowtide.source.find_inputs import find_inputs

    try:
        return bool(find_inputs([str(folder)]))
    except LowtideError:
        return False


def _looks_like_text(path: Path) -> bool:
    """Whether a file is text: rows by their name, plain text by its first bytes."""
    from lowtide.source.find_inputs import is_row_file

    if is_row_file(path) or path.suffix in (".gz", ".zst"):
        return True
    with path.open("rb") as file:
        start = file.read(_SNIFFED_BYTES)
    try:
        start[: len(start) - 3].decode()  # a character may lie across the end
    except UnicodeDecodeError as error:
        return error.start >= len(start) - 6
    return b"\0" not in start
