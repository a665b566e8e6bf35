"""The text of the demo: the sources of Python's standard library, as one parquet file.

    python -m lowtide.tools.demo.corpus corpus.parquet /usr/lib/python3.11

One row for each file, in the order of their names, so that the same Python gives the same bytes.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from lowtide.errors import LowtideError, UsageError
from lowtide.storage.publish import publish, storage_errors, sync_file
from lowtide.units import MIB

_NOT_OF_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__"})
_GROUP_BYTES = 4 * MIB
"""Amount of text that is held at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """What the corpus was made of."""

    files: int
    text_bytes: int
    left_out: int
    """Files that are not text in the encoding that they declare: the library has some for its own tests."""


def write_corpus(path: Path, library: Path) -> CorpusFacts:
    """Write all sources below `library` to `path`, whole and durable. Raises UsageError if there are none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        facts = _write_rows(partial, library)
        if not facts.files:
            raise UsageError(
                f"{library} holds no sources of Python's standard library",
                remedy="use a Python that has them, or begin with your own text: "
                "`lowtide tokenize TEXT --out tokens`",
            )
        publish(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return facts


def _write_rows(partial: Path, library: Path) -> CorpusFacts:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("path", pa.string()), ("text", pa.string())])
    files = text_bytes = left_out = 0
    with storage_errors(partial), partial.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for group in _groups(library):
                rows = [(name, text) for name, text in group if text is not None]
                left_out += len(group) - len(rows)
                files += len(rows)
                text_bytes += sum(len(text.encode()) for _, text in rows)
                names, texts = [row[0] for row in rows], [row[1] for row in rows]
                writer.write_table(pa.table({"path": names, "text": texts}, schema=schema))
        sync_file(file.fileno())
    return CorpusFacts(files=files, text_bytes=text_bytes, left_out=left_out)


def _groups(library: Path) -> Iterator[list[tuple[str, str | None]]]:
    """Names and texts, a few megabytes at a time; None for what is not text."""
    group: list[tuple[str, str | None]] = []
    held_bytes = 0
    for source in _sources(library):
        text = _decoded(source)
        group.append((source.relative_to(library).as_posix(), text))
        held_bytes += len(text or "")
        if held_bytes >= _GROUP_BYTES:
            yield group
            group, held_bytes = [], 0
    if group:
        yield group


def _sources(library: Path) -> Iterator[Path]:
    """Every `.py` of the library itself, by name."""
    for folder, below, names in os.walk(library):
        below[:] = sorted(set(below) - _NOT_OF_THE_LIBRARY)
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(folder, name)


def _decoded(source: Path) -> str | None:
    try:
        content = source.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
        text.encode()  # a lone surrogate is not text
    except (OSError, SyntaxError, ValueError, LookupError):
        return None
    return text


def main(out: str, library: str) -> None:
    try:
        facts = write_corpus(Path(out), Path(library))
    except LowtideError as error:
        sys.exit(f"error: {error.problem}\nhint: {error.remedy}")
    sys.stdout.write(json.dumps(asdict(facts)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
