"""What a finished dataset holds, written last as `lowtide.json`: no manifest, no dataset.

It names no time and no machine: the same input with the same settings gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol, TypeAlias, TypeVar, cast

import msgspec

from lowtide.errors import LowtideError, VerificationError
from lowtide.settings import Placement
from lowtide.shards.layout import (
    MANIFEST_NAME,
    ShardLayout,
    Split,
    companion_name,
    documents_name,
    learnt_name,
    shard_number,
)
from lowtide.storage.decode_json import Digest, FileName, convert_json, explain
from lowtide.storage.sealed_json import JsonObject, JsonValue, read_sealed, write_sealed
from lowtide.units import format_count

TEXT_VERSION = 1
EXAMPLES_VERSION = 2
"""With loss masks: a release that does not know them must not train on every token."""
TokenId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Setting: TypeAlias = str | int | float | bool | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """One file of tokens."""

    name: FileName
    tokens: int
    digest: Digest
    """xxh3_128 of the token bytes, without the header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentIndexRecord:
    """One file of document ends."""

    name: FileName
    documents: int
    digest: Digest
    """xxh3_128 of the int64 ends, without the header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMaskRecord:
    """One loss mask: a file with one bit per token of its split."""

    name: FileName
    tokens: int
    """Tokens that are targets: the set bits."""
    digest: Digest
    """xxh3_128 of the packed bits, without the header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRecord:
    """The files of one split, in the order of its token stream."""

    shards: tuple[ShardRecord, ...] = ()
    index: DocumentIndexRecord | None = None
    """None when the split holds no tokens, or nothing says where its documents end."""
    learnt: LossMaskRecord | None = None
    """The loss mask; None when the split holds no tokens, or is text, where every token is a target."""

    @property
    def tokens(self) -> int:
        """Tokens over all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        """Documents in the index; 0 without one."""
        return self.index.documents if self.index else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """A file the tokens were made from."""

    name: str
    size_bytes: int
    fingerprint: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerRecord:
    """What gives the ids their meaning."""

    name: str
    fingerprint: str
    vocabulary_size: int
    end_of_text: TokenId | None = None
    special_tokens: dict[str, TokenId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRowRecord:
    """A row that was left out or repaired, and why."""

    file: str
    position: int
    unit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRecord:
    """Files in input folders and globs that were not read for the same reason."""

    reason: str
    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplesRecord:
    """How examples were turned into tokens, with counts over all splits."""

    kind: str
    template: str
    """Name of a built-in template, or the path that was given."""
    template_text: str
    """The Jinja text that was used, even if the file has changed since."""
    learn: str
    too_long: str
    context: int
    examples: int
    """Rows that became tokens; a row that was split counts once."""
    learnt_tokens: int
    too_long_count: int
    """Examples of more than `context` tokens."""
    dropped_count: int
    """Pieces left out because no token in them was a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """Everything known about a dataset except its tokens."""

    tool_version: str
    layout: ShardLayout
    eot: Placement
    tokenizer: TokenizerRecord
    splits: dict[Split, SplitRecord]
    inputs: tuple[InputRecord, ...] = ()
    skipped: tuple[SkippedRecord, ...] = ()
    settings: dict[str, Setting] = field(default_factory=dict)
    """How the tokens were made. An export keeps them: its own form is in `layout` and `eot`."""
    text_bytes: int | None = None
    """Bytes of text behind the tokens; None when the dataset came from a peer's files."""
    bad_rows: int = 0
    first_bad_rows: tuple[BadRowRecord, ...] = ()
    empty_documents: int = 0
    unknown_tokens: int = 0
    """Tokens that stand for text the vocabulary has no token for."""
    examples: ExamplesRecord | None = None
    """None for text."""

    @property
    def format_version(self) -> int:
        """The oldest version of the format that a reader must know."""
        masked = any(split.learnt for split in self.splits.values())
        return EXAMPLES_VERSION if self.examples or masked else TEXT_VERSION

    @property
    def tokens(self) -> int:
        """Tokens over all splits."""
        return sum(split.tokens for split in self.splits.values())

    @property
    def documents(self) -> int:
        """Documents over all splits."""
        return sum(split.documents for split in self.splits.values())

    @property
    def in_words(self) -> str:
        """`98.1M tokens of 12.0k documents`."""
        return f"{format_count(self.tokens)} tokens of {format_count(self.documents)} documents"

    def __repr__(self) -> str:
        return f"<DatasetManifest {self.layout.format}, {self.tokenizer.name}: {self.in_words}>"


def write_manifest(folder: Path, manifest: DatasetManifest) -> None:
    """Complete the dataset. Call it last, when every file it names is published."""
    payload = _without_empty_keys(to_json(manifest))
    payload["format_version"] = manifest.format_version
    payload["tokens"] = manifest.tokens  # for people: read back from the shards, not from here
    payload["documents"] = manifest.documents
    write_sealed(folder / MANIFEST_NAME, payload)


def read_manifest(folder: Path) -> DatasetManifest:
    """The manifest of a folder of ours; VerificationError if it is missing, edited or not lowtide's."""
    path = folder / MANIFEST_NAME
    payload = read_sealed(path)
    _check_version(path, payload.get("format_version"), (TEXT_VERSION, EXAMPLES_VERSION))
    manifest = from_json(payload, DatasetManifest, path)
    _check_version(path, payload.get("format_version"), (manifest.format_version,))
    if not manifest.splits:
        raise VerificationError(f"{path} names no split", remedy="make the dataset again")
    for split, record in manifest.splits.items():
        check_names(path, manifest.layout, split, record.shards, record.index, record.learnt)
        if manifest.examples and record.shards and not record.learnt:
            raise VerificationError(
                f"{path} names no loss mask for {split}, so the targets of its examples are not known",
                remedy="make the dataset again",
            )
    return manifest


class _Named(Protocol):
    """A record, or a mark, of one file."""

    @property
    def name(self) -> str:
        """The file's name."""


def check_names(
    path: Path,
    layout: ShardLayout,
    split: Split,
    shards: Iterable[_Named],
    index: _Named | None,
    learnt: _Named | None,
) -> None:
    """VerificationError if the record at `path` has a file name that lowtide does not write for this split.

    A record must not make lowtide open, or remove, a file that is not of its own kind.
    """
    foreign = [one.name for one in shards if shard_number(layout, split, one.name) is None]
    foreign += [index.name] if index and index.name != documents_name(split) else []
    foreign += [learnt.name] if learnt and learnt.name != learnt_name(split) else []
    if foreign:
        raise VerificationError(
            f"{path} names {foreign[0]!r}, which is not the name of a shard or index of its format",
            remedy="do not use this folder: its records were not written by lowtide",
        )


def file_names(manifest: DatasetManifest) -> list[str]:
    """Every file of the dataset except the manifest itself."""
    names: list[str] = []
    for split, record in manifest.splits.items():
        names += [one.name for one in (*record.shards, record.index, record.learnt) if one]
        companion = companion_name(manifest.layout, split)
        names += [companion] if companion and record.shards else []
    return names


def _without_empty_keys(payload: JsonObject) -> JsonObject:
    """Leave out keys of examples for text, and of what never occurred: old manifests keep their bytes."""
    for key in ("skipped", "unknown_tokens"):
        if not payload[key]:
            del payload[key]
    splits = cast("dict[str, dict[str, JsonValue]]", payload["splits"])
    for holder, key in ((payload, "examples"), *((split, "learnt") for split in splits.values())):
        if holder[key] is None:
            del holder[key]
    return payload


def to_json(value: object) -> JsonObject:
    """A dataclass of this package as plain JSON values."""
    return cast(JsonObject, msgspec.to_builtins(value))


def from_json(payload: Mapping[str, JsonValue], kind: type[T], path: Path) -> T:
    """Build the dataclass from JSON values, every type checked; an error names `path`."""
    try:
        return convert_json(payload, kind)
    except (msgspec.ValidationError, LowtideError) as error:
        problem = explain(error) if isinstance(error, msgspec.ValidationError) else error.problem
        raise VerificationError(
            f"{path} does not hold what it should: {problem}",
            remedy=f"put {path.name} back from a copy, or make the dataset again",
        ) from error


def _check_version(path: Path, version: JsonValue, readable: tuple[int, ...]) -> None:
    if version not in readable:
        wanted = " and ".join(map(str, readable))
        raise VerificationError(
            f"{path} has format version {version!r}, this release reads {wanted}",
            remedy="read it with the release of lowtide that wrote it",
        )
