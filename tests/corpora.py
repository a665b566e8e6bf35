"""Small corpora for the laws: strange documents, and the same documents in every format."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SEPARATOR = "<|endoftext|>"
_LINE = (
    "the of and to in is that it was for on are as with his they at be this from I have or by one had "
    "not but what all were when we there can an your which their said if do will each about "
    "naïve café Straße привет мир 你好 世界 こんにちは 안녕 שלום नमस्ते 👍🏽 it's DON'T 3.14 2026 x=1; {} ()"
)
_WORDS = tuple(_LINE.split())
_GLUE = (
    " ",
    " ",
    " ",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    ", ",
    ". ",
    "'s ",
    " \n",
    "\u00a0",
    "",
)


def make_document(random_source: random.Random, length: int) -> str:
    """About `length` characters of words, numbers, scripts, blanks and punctuation."""
    parts: list[str] = []
    size = 0
    while size < length:
        word = random_source.choice(_WORDS) + random_source.choice(_GLUE)
        parts.append(word)
        size += len(word)
    return "".join(parts)


def make_documents(seed: int, *, count: int, longest: int = 4000) -> list[str]:
    """Documents of very different length; the same for the same seed."""
    random_source = random.Random(seed)
    lengths = [int(longest ** random_source.random()) + 1 for _ in range(count)]
    return [make_document(random_source, length) for length in lengths]


def write_inputs(folder: Path, documents: Sequence[str]) -> dict[str, Path]:
    """The documents as text, gz, JSONL, parquet and Arrow."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {
        kind: folder / f"documents.{kind}"
        for kind in ("txt", "txt.gz", "jsonl", "parquet", "arrow")
    }
    text = "".join(document + SEPARATOR for document in documents).encode()
    paths["txt"].write_bytes(text)
    paths["txt.gz"].write_bytes(gzip.compress(text, mtime=0))
    lines = (json.dumps({"id": n, "text": d}) + "\n" for n, d in enumerate(documents))
    paths["jsonl"].write_text("".join(lines))
    table = pa.table({"id": list(range(len(documents))), "text": list(documents)})
    pq.write_table(table, paths["parquet"], row_group_size=max(1, len(documents) // 3))
    with pa.OSFile(str(paths["arrow"]), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return paths
