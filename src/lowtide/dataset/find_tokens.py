"""From a path to the tokens that a loader will see: a dataset, one of its splits, or a share of one.

A folder or file of lowtide, nanoGPT, llm.c, Megatron or numpy is found by what is in it. Where only the text
is there, the error names the command that makes the tokens.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import xxhash

from lowtide.errors import LowtideError, UsageError, VerificationError
from lowtide.shards.documents import (
    DocumentIndex,
    MegatronDocuments,
    ScannedDocuments,
    StoredDocuments,
)
from lowtide.shards.layout import (
    MANIFEST_NAME,
    NPY_HEADER_BYTES,
    WORK_FOLDER,
    documents_header,
    learnt_bytes,
)
from lowtide.shards.learnt import LearntBits
from lowtide.shards.manifest import TokenizerRecord
from lowtide.shards.megatron import index_problems
from lowtide.shards.payload import read_exactly, reading
from lowtide.shards.read import Dataset, TokenSplit
from lowtide.shards.read import open_dataset as open_at
from lowtide.storage.fingerprint import digest_file
from lowtide.storage.paths import as_path
from lowtide.units import KIB, format_count

RUN_RECORD = "lowtide-run.json"
"""In the folder of a training run."""
_TOKEN_SUFFIXES = frozenset({".npy", ".bin", ".idx"})
_SNIFFED_BYTES = 8 * KIB
_LOOKED_AT_BYTES = 4 * KIB
_LOOKED_AT_FILES = 16
_COUNTED_TOKENS = 1 << 22
TOKENIZER_MANIFEST = "lowtide-tokenizer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTokens:
    """A range of one split."""

    dataset: Dataset
    split: TokenSplit
    start: int
    tokens: int


def open_dataset(path: str | Path, *, tokenizer: str | None = None) -> Dataset:
    """Open a dataset of ours or a peer's files. A peer's files may need the tokenizer.

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


def find_tokens(
    path: str | Path, split: str, *, val_fraction: float | None, tokenizer: str | None
) -> FoundTokens:
    """The tokens of `split`; with `val_fraction`, train is the front of the tokens and val the rest."""
    dataset = open_dataset(path, tokenizer=tokenizer)
    if val_fraction is None:
        found = _named_split(dataset, split)
        return FoundTokens(dataset=dataset, split=found, start=0, tokens=found.tokens)
    whole = _only_split(dataset, split, val_fraction)
    kept = round(1 - val_fraction, 12)  # 1 - 0.9 is 0.09999999999999998
    border = int(whole.tokens * kept)  # as `data[:int(n * 0.9)]` does it by hand
    if split == "train":
        return FoundTokens(dataset=dataset, split=whole, start=0, tokens=border)
    return FoundTokens(dataset=dataset, split=whole, start=border, tokens=whole.tokens - border)


def tokenizer_record(source: str | None) -> TokenizerRecord | None:
    """A tokenizer named by the user, as the shards room knows it."""
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
    """The split's documents by look-up, proven; where only a scan finds them, in a temporary file.

    That file is the caller's to remove.
    """
    split, documents = found.split, found.split.documents
    if documents is None:
        raise UsageError(
            f"nothing says where the documents of split {split.name} end",
            remedy="name the tokenizer that made the tokens: `tokenizer='gpt2'`, or `--tokenizer gpt2`",
        )
    if not isinstance(documents, ScannedDocuments):
        _prove_index(found, documents)
        return documents, None
    descriptor, name = tempfile.mkstemp(prefix="lowtide-documents-", suffix=".npy")
    count = 0
    with os.fdopen(descriptor, "wb") as file:
        file.write(documents_header(0))
        for ends in documents.ends():
            file.write(ends.astype("<i8").tobytes())
            count += len(ends)
    return StoredDocuments(path=Path(name), count=count), Path(name)


def digest_documents(found: FoundTokens) -> str | None:
    """Of what says where documents end; None where nothing does."""
    documents = found.split.documents
    manifest = found.dataset.manifest
    for name, record in (manifest.splits if manifest else {}).items():
        if name == found.split.name and record.index is not None:
            return record.index.digest
    if isinstance(documents, MegatronDocuments):
        path = documents.index.path
        return digest_file(path, 0, path.stat().st_size)
    tokenizer = found.dataset.tokenizer
    return f"id {tokenizer.end_of_text}, {found.dataset.eot}" if tokenizer else None


def proven_learnt(found: FoundTokens) -> LearntBits | None:
    """What says which tokens are learnt; None for text. VerificationError unless it is what was written."""
    bits, digest = found.split.learnt, digest_learnt(found)
    if bits is None:
        return None
    if digest_file(bits.path, NPY_HEADER_BYTES, learnt_bytes(bits.tokens)) != digest:
        raise VerificationError(
            f"{bits.path.name}: its bits are not those that were written",
            remedy="put the file back from a copy, or make the dataset again",
        )
    return bits


def count_learnt(found: FoundTokens) -> int | None:
    """Learnt tokens in the range, from the manifest or by a pass over its bits; None for text."""
    bits, manifest = found.split.learnt, found.dataset.manifest
    if bits is None:
        return None
    for name, record in (manifest.splits if manifest else {}).items():
        if name == found.split.name and record.learnt is not None and found.tokens == bits.tokens:
            return record.learnt.tokens
    stop = found.start + found.tokens
    parts = range(found.start, stop, _COUNTED_TOKENS)
    return sum(int(bits.read(at, min(stop, at + _COUNTED_TOKENS)).sum()) for at in parts)


def digest_learnt(found: FoundTokens) -> str | None:
    """Of the learnt bits; None where there are none."""
    manifest = found.dataset.manifest
    for name, record in (manifest.splits if manifest else {}).items():
        if name == found.split.name and record.learnt is not None:
            return record.learnt.digest
    return None


def digest_tokens(found: FoundTokens) -> str:
    """Of the manifest's digests; for a peer's files, of their sizes and both ends of some of them."""
    manifest = found.dataset.manifest
    state = xxhash.xxh3_128()
    if manifest is not None:
        for name, record in manifest.splits.items():
            if name == found.split.name:
                state.update("".join(shard.digest for shard in record.shards).encode())
        return state.hexdigest()
    files = found.split.files
    state.update(",".join(str(file.tokens) for file in files).encode())
    for file in files[:: -(-len(files) // _LOOKED_AT_FILES)]:
        length = min(_LOOKED_AT_BYTES, file.tokens * file.dtype.itemsize)
        state.update(read_exactly(file.path, file.header_bytes, length))
        state.update(read_exactly(file.path, file.file_bytes - length, length))
    return state.hexdigest()


def _prove_index(found: FoundTokens, documents: DocumentIndex) -> None:
    """VerificationError unless the index is what was written, or a peer's fits its tokens."""
    problems: list[str] = []
    if isinstance(documents, MegatronDocuments):
        problems = index_problems(documents.index, found.split.tokens)
    records = found.dataset.manifest.splits if found.dataset.manifest else {}
    for name, record in records.items():
        if name == found.split.name and record.index is not None:
            path = found.dataset.path / record.index.name
            length = 8 * record.index.documents
            if digest_file(path, NPY_HEADER_BYTES, length) != record.index.digest:
                problems.append(f"{record.index.name}: its ends are not those that were written")
    if problems:
        raise VerificationError(
            problems[0], remedy="put the index back from a copy, or make the dataset again"
        )


def _named_split(dataset: Dataset, name: str) -> TokenSplit:
    found = dataset.splits.get(name)
    if found is not None and found.tokens:
        return found
    others = [other for other, split in dataset.splits.items() if split.tokens]
    what = "is empty" if found is not None else "is not there"
    remedy = (
        f"pass `split={others[0]!r}` (`--split {others[0]}`)"
        if others
        else "make the dataset again from more text"
    )
    if others == ["train"] and name == "val":
        remedy = (
            "pass `val_fraction=0.1` here and for train, which holds out the last tenth; or tokenize again "
            "with a larger `--val`"
        )
    raise UsageError(
        f"split {name!r} of {dataset.path} {what}; it has {', '.join(others) or 'no tokens'}",
        remedy=remedy,
    )


def _only_split(dataset: Dataset, split: str, val_fraction: float) -> TokenSplit:
    if not 0 < val_fraction < 1:
        raise UsageError(
            f"a share of {val_fraction} cannot be held out", remedy="pass `val_fraction=0.1`"
        )
    if split not in ("train", "val"):
        raise UsageError(
            f"`val_fraction` makes train and val, not {split!r}",
            remedy="pass `split='train'` or `split='val'`",
        )
    filled = [found for found in dataset.splits.values() if found.tokens]
    if len(filled) != 1:
        sizes = ", ".join(f"{one.name} ({format_count(one.tokens)} tokens)" for one in filled)
        raise UsageError(
            f"{dataset.path} has splits of its own: {sizes or 'all empty'}",
            remedy="leave `val_fraction` out, or name one file",
        )
    return filled[0]


def refuse_what_is_no_dataset(path: Path) -> None:
    """UsageError for a run's or a tokenizer's folder, or for text, with the command to run instead."""
    with reading(path):
        if (path / MANIFEST_NAME).is_file():
            return
        _refuse_run(path)
        _refuse_tokenizer(path)
        if not (path / WORK_FOLDER).is_dir():  # else it is unfinished, which opening it says
            _refuse_text(path)


def _refuse_run(path: Path) -> None:
    if (path / RUN_RECORD).exists():
        shown = quote(str(path))
        raise UsageError(
            f"{path} holds a training run and no tokens",
            remedy=f"`lowtide sample {shown} --prompt Once` generates text, `lowtide report {shown}` shows its "
            f"steps, and `lowtide export {shown} --to huggingface --out model` exports the model",
        )


def _refuse_tokenizer(path: Path) -> None:
    if (path / TOKENIZER_MANIFEST).exists():
        raise UsageError(
            f"{path} holds a tokenizer and no tokens",
            remedy=f"make tokens with `lowtide tokenize INPUT... --tokenizer {quote(str(path))} --out tokens`; "
            "the "
            "`train-tokenizer` that made it, run again, compares its files with their digests",
        )


def _refuse_text(path: Path) -> None:
    """UsageError with the command to run, where there is text and nothing else."""
    if path.is_file():
        only_text = path.suffix not in _TOKEN_SUFFIXES and _looks_like_text(path)
    else:
        only_text = path.is_dir() and not _has_token_files(path) and _has_inputs(path)
    if only_text:
        raise UsageError(
            f"{path} holds text and no tokens",
            remedy=f"make them with `lowtide tokenize {quote(str(path))} --out tokens` (of rows, `--column` "
            "names the text, and `--examples` reads chats), then open `tokens`",
        )


def _has_token_files(folder: Path) -> bool:
    return any(entry.suffix in _TOKEN_SUFFIXES for entry in folder.iterdir())


def _has_inputs(folder: Path) -> bool:
    from lowtide.source.find_inputs import find_inputs

    try:
        return bool(find_inputs([str(folder)]))
    except LowtideError:
        return False


def _looks_like_text(path: Path) -> bool:
    """Rows by their name, plain text by its first bytes."""
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
