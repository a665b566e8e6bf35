"""A point that a writer can go back to, and the proof that what lies before it still stands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import VerificationError
from lowtide.shards.layout import ShardLayout, Split, shard_header
from lowtide.shards.manifest import (
    DocumentIndexRecord,
    ShardRecord,
    check_names,
    from_json,
    to_json,
)
from lowtide.shards.payload import RESTART, read_exactly
from lowtide.storage.decode_json import Digest, FileName
from lowtide.storage.fingerprint import digest_file
from lowtide.storage.sealed_json import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntMark:
    """How far the learnt bits had come: one for each token before the mark."""

    name: FileName
    learnt_tokens: int
    """Bits that are set, the waiting ones included."""
    digest: Digest
    """xxh3_128 of the whole bytes, which are in the file."""
    waiting: int
    """The bits that do not fill a byte yet, the first of them the lowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterMark:
    """A point the writer can go back to: everything before it is on the disk."""

    split: Split
    finished: tuple[ShardRecord, ...] = ()
    open: ShardRecord | None = None
    """The shard that was growing, as far as it was."""
    index: DocumentIndexRecord | None = None
    """The document index, as far as it was."""
    learnt: LearntMark | None = None
    """None for text, of which every token is learnt."""

    @property
    def tokens(self) -> int:
        """Tokens before the mark."""
        open_tokens = self.open.tokens if self.open else 0
        return open_tokens + sum(shard.tokens for shard in self.finished)

    @property
    def documents(self) -> int:
        """Documents that ended before the mark."""
        return self.index.documents if self.index else 0

    @property
    def names(self) -> set[str]:
        """The files that the mark names."""
        records = (*self.finished, self.open, self.index, self.learnt)
        return {record.name for record in records if record}

    def check_names(self, layout: ShardLayout, path: Path) -> None:
        """VerificationError where the mark, read from `path`, names a file that lowtide does not write."""
        check_names(
            path,
            layout,
            self.split,
            shards=[shard.name for shard in (*self.finished, self.open) if shard],
            index=self.index.name if self.index else None,
            learnt=self.learnt.name if self.learnt else None,
        )

    def as_json(self) -> JsonObject:
        """Plain values for the caller's progress file."""
        return to_json(self)

    @classmethod
    def from_json(cls, payload: JsonObject, path: Path) -> WriterMark:
        """The mark back from the progress file at `path`; VerificationError if it is not one."""
        return from_json(payload, WriterMark, path)


def check_shard_form(path: Path, layout: ShardLayout, tokens: int) -> None:
    """The file has the size and header that its count demands; VerificationError otherwise."""
    wanted_bytes = layout.file_bytes(tokens)
    if not path.is_file():
        raise VerificationError(f"{path} is missing", remedy=RESTART)
    found_bytes = path.stat().st_size
    if found_bytes != wanted_bytes:
        raise VerificationError(
            f"{path} has {found_bytes} bytes instead of {wanted_bytes}", remedy=RESTART
        )
    if read_exactly(path, 0, layout.header_bytes) != shard_header(layout, tokens):
        raise VerificationError(f"{path} has a damaged header", remedy=RESTART)


def verify_finished(folder: Path, layout: ShardLayout, mark: WriterMark) -> None:
    """Read every finished shard of a resumed split and compare digests: costs one pass."""
    for shard in mark.finished:
        path = folder / shard.name
        check_shard_form(path, layout, shard.tokens)
        length = shard.tokens * layout.token_bytes
        if digest_file(path, layout.header_bytes, length) != shard.digest:
            raise VerificationError(f"{path} is not what was written to it", remedy=RESTART)
