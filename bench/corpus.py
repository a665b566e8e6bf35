"""Make a corpus for the benchmarks: one text, and the same documents as JSONL and parquet.

    python bench/corpus.py --out /tmp/corpus --megabytes 1000 --from /usr/src/linux-source-6.1.tar.xz

Documents are the text files of a tarball or folder, long ones cut into documents of up to 64 KiB, shuffled
with a fixed seed: the front of the corpus is like the whole. All of them are held in memory for that.
Debian's package `linux-source-6.1` holds such a tarball. Without `--from` it takes the sources of
the installed Python packages and of /usr, which may be less than what was asked for; it says how much it found.
"""

from __future__ import annotations

import sys

sys.path[:1] = []  # tokenize.py beside this file would hide a standard module

import argparse
import json
import random
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SEPARATOR = "<|endoftext|>"
LONGEST_CHARACTERS = 64 << 10
_SUFFIXES = (".py", ".c", ".h", ".rst", ".txt", ".md", ".pl", ".sh", ".js", ".html", ".rs")


def documents(source: Path | None) -> Iterator[str]:
    """Texts of a tarball, of a folder, or of this machine's own sources."""
    if source is not None and source.is_file():
        with tarfile.open(source, "r|*") as archive:
            for member in archive:
                opened = archive.extractfile(member) if member.isfile() else None
                if opened is not None:
                    yield from _as_text(opened.read())
        return
    folders = [source] if source else [Path(sysconfig.get_path("purelib")), Path("/usr")]
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file() and not path.is_symlink():
                yield from _as_text(path.read_bytes())


def _as_text(data: bytes) -> Iterator[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if len(text) < 100 or SEPARATOR in text:
        return
    part: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        if size + len(line) > LONGEST_CHARACTERS and part:
            yield "".join(part)
            part, size = [], 0
        part.append(line)
        size += len(line)
    yield "".join(part)


def write(out: Path, texts: Iterable[str], most_bytes: int) -> int:
    """Write corpus.txt, corpus.jsonl and corpus.parquet, up to so many bytes; returns the bytes of text."""
    out.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    total = count = 0
    rows: list[str] = []
    with (
        (out / "corpus.txt").open("w", encoding="utf-8", newline="") as text_file,
        (out / "corpus.jsonl").open("w", encoding="utf-8", newline="") as jsonl,
        pq.ParquetWriter(out / "corpus.parquet", schema, compression="zstd") as parquet,
    ):
        for text in texts:
            text_file.write(text + SEPARATOR)
            jsonl.write(json.dumps({"id": count, "text": text}, ensure_ascii=False) + "\n")
            rows.append(text)
            total += len(text.encode())
            count += 1
            if len(rows) == 2000:
                _flush(parquet, schema, rows, count)
            if total >= most_bytes:
                break
        _flush(parquet, schema, rows, count)
    return total


def read(corpus: Path) -> Iterator[str]:
    """The documents of a corpus, in order, a batch of rows in memory."""
    for batch in pq.ParquetFile(corpus / "corpus.parquet").iter_batches(500, columns=["text"]):
        yield from batch.column("text").to_pylist()


def _shuffled(texts: Iterator[str]) -> list[str]:
    found = list(texts)
    random.Random(0).shuffle(found)
    return found


def _flush(parquet: pq.ParquetWriter, schema: pa.Schema, rows: list[str], count: int) -> None:
    if rows:
        ids = range(count - len(rows), count)
        parquet.write_table(pa.table({"id": list(ids), "text": rows}, schema=schema))
        rows.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--from", dest="source", type=Path)
    chosen = parser.parse_args()
    texts = _shuffled(documents(chosen.source))
    total = write(chosen.out, texts, chosen.megabytes * 10**6)
    sys.stdout.write(f"{total / 1e6:.0f} MB of text in {chosen.out}\n")


if __name__ == "__main__":
    main()
