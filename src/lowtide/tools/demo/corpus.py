"""The text of the demo: the sources of Python's standard library, as one parquet file.

    python -m lowtide.tools.demo.corpus corpus.parquet /usr/lib/python3.11

One row for each file, in the order of their names, so that the same Python gives the same bytes. A file that
is there already is kept: what was made from it would not belong to a new one.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from lowtide.errors import LowtideError, UsageError
from lowtide.storage.publish import partial_path, publish, storage_errors, sync_file
from lowtide.units import MIB

_NOT_OF_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__"})
_GROUP_BYTES = 4 * MIB
"""Amount of text that is held at a time."""
_FACTS = "lowtide-demo"
"""Key of the parquet file's metadata that holds what `write_corpus` returns."""

Facts = dict[str, str | int]


def write_corpus(path: Path, library: Path) -> Facts:
    """Write all sources below `library` to `path`, whole and durable. Raises UsageError if there are none.

    Returns the release of Python, the number of files and bytes, and how many files were left out because they
    are not text in the encoding that they declare: the library has some for its own tests.
    """
    partial = partial_path(path)
    try:
        facts = _write_rows(partial, library)
        if not facts["files"]:
            raise UsageError(
                f"{library} holds no sources of Python's standard library",
                remedy="use a Python that has them, or begin with your own text: "
                "`lowtide tokenize TEXT --out tokens`",
            )
        publish(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return facts


def read_facts(path: Path) -> Facts:
    """What `write_corpus` returned for the file. Raises UsageError for any other file."""
    import pyarrow.parquet as pq

    try:
        with storage_errors(path, doing="read"):
            facts: Facts = json.loads(pq.read_metadata(path).metadata[_FACTS.encode()])
    except (ValueError, TypeError, KeyError) as cause:
        raise UsageError(
            f"{path} is not the demo's text", remedy="move it away, and run the same command again"
        ) from cause
    return facts


def _write_rows(partial: Path, library: Path) -> Facts:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("path", pa.string()), ("text", pa.string())])
    files = text_bytes = left_out = 0
    with storage_errors(partial), partial.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for group in _groups(library):
                rows = {name: text for name, text in group.items() if text is not None}
                left_out += len(group) - len(rows)
                files += len(rows)
                text_bytes += sum(len(text.encode()) for text in rows.values())
                columns = {"path": list(rows), "text": list(rows.values())}
                writer.write_table(pa.table(columns, schema=schema))
            facts: Facts = {
                "python": ".".join(platform.python_version_tuple()[:2]),
                "files": files,
                "text_bytes": text_bytes,
                "left_out": left_out,
            }
            writer.add_key_value_metadata({_FACTS: json.dumps(facts)})
        sync_file(file.fileno())
    return facts


def _groups(library: Path) -> Iterator[dict[str, str | None]]:
    """Names and texts of the library's own sources, a few megabytes at a time; None for what is not text."""
    group: dict[str, str | None] = {}
    for folder, below, names in os.walk(library):
        below[:] = sorted(set(below) - _NOT_OF_THE_LIBRARY)
        for source in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
            group[source.relative_to(library).as_posix()] = _decoded(source)
            if sum(len(text or "") for text in group.values()) >= _GROUP_BYTES:
                yield group
                group = {}
    if group:
        yield group


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
    path = Path(out)
    try:
        already_done = path.exists()
        facts = read_facts(path) if already_done else write_corpus(path, Path(library))
    except LowtideError as error:
        sys.exit(f"error: {error.problem}\nhint: {error.remedy}")
    sys.stdout.write(json.dumps({"already_done": already_done, **facts}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
