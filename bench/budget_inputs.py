"""Prove the budget on every form of Arrow and Parquet, hostile ones too, in cgroups as large as the budget.

    python bench/budget_inputs.py            # all of them, about an hour
    python bench/budget_inputs.py --sample 12 --seed 7

Each run must end in one of two ways: done, with the very tokens that the documents have, or refused with an
error and a hint before memory is gone. Where the error names how much more memory would do, some of the runs
are made again with that much, and must then be done. Exits with 1 if any run was killed for its memory,
aborted, wrote other tokens, or was refused although it must fit.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import hashlib
import random
import re
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lowtide import Tokenizer
from lowtide.shards.read import open_dataset
from lowtide.units import MIB, parse_bytes
from tests import column_files as files
from tests.boxes import BoxResult, drop_from_page_cache, how_boxes_work, run_in_box
from tests.corpora import make_document

MEMORY = "256MiB"
DISTINCT = 50
DOCUMENT_BYTES = 30_000
TIMEOUT_SECONDS = 300

Command = Literal["tokenize", "dry-run", "train-tokenizer"]
Outcome = Literal["done", "refused", "OOM", "ABORT", "WRONG", "REFUSED"]
FAILED: tuple[Outcome, ...] = ("OOM", "ABORT", "WRONG", "REFUSED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A file, what is run on it, and how many of the documents it holds."""

    name: str
    make: Callable[[Path], object]
    suffix: str
    rows: int
    """Documents, taken in turns from `documents()`; 0: the file is not to be read."""
    must_fit: bool
    """A refusal is a failure."""
    command: Command = "tokenize"
    follow_advice: bool = False
    """If it is refused, it is run again with the memory that the hint names."""


@cache
def documents() -> list[str]:
    """Distinct documents of 30 KB whose first nine tenths are the same: near-duplicates."""
    source = random.Random(5)
    common = make_document(source, DOCUMENT_BYTES * 9 // 10)
    return [common + make_document(source, DOCUMENT_BYTES // 10) for _ in range(DISTINCT)]


def texts(rows: int) -> list[str]:
    """The documents of a file with so many rows."""
    return [documents()[number % DISTINCT] for number in range(rows)]


@cache
def _ids() -> list[bytes]:
    tokenizer = Tokenizer.load("gpt2")
    end = tokenizer.end_of_text
    return [np.array([*tokenizer.encode(text), end], dtype="<u2").tobytes() for text in documents()]


@cache
def expected_digest(rows: int) -> str:
    """Of the tokens of so many documents, as the tokenizer gives them one by one."""
    digest = hashlib.sha256()
    for number in range(rows):
        digest.update(_ids()[number % DISTINCT])
    return digest.hexdigest()


def found_digest(folder: Path) -> str:
    """Of the tokens that were written."""
    digest = hashlib.sha256()
    for piece in open_dataset(folder).splits["train"].stream():
        digest.update(piece.tobytes())
    return digest.hexdigest()


def table_of(rows: int, kind: pa.DataType) -> pa.Table:
    """The documents beside other columns, as people have them."""
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "text": pa.array(texts(rows), pa.string()).cast(kind),
            "source": pa.array([f"https://example.org/{number}" for number in range(rows)]),
        }
    )


def arrow_cases() -> Iterator[Case]:
    """File and stream × codec × type × one large batch or small ones."""
    for form in files.ARROW_FORMS:
        for codec in files.ARROW_CODECS:
            for name, kind in files.TEXT_TYPES.items():
                for rows, batch_rows in ((2500, 2500), (500, 100)):
                    yield Case(
                        name=f"arrow {form}, {codec or 'plain'}, {name}, batches of {batch_rows}",
                        make=partial(_write_arrow, rows, kind, form, codec, batch_rows),
                        suffix=".feather" if form == "file" else ".arrow",
                        rows=rows,
                        must_fit=codec is None or batch_rows == 100 or name == "dictionary",
                        follow_advice=name in ("string", "string_view"),
                    )
        yield Case(
            name=f"arrow {form}, plain, string, one batch of 400 MB",
            make=partial(_write_arrow, 14_000, pa.string(), form, None, 14_000),
            suffix=".feather" if form == "file" else ".arrow",
            rows=14_000,
            must_fit=True,
        )

        for entries in (2_000_000, 20_000_000):
            yield Case(
                name=f"arrow {form}, plain, a dictionary of {entries} entries",
                make=partial(_large_dictionary, form, entries),
                suffix=".feather" if form == "file" else ".arrow",
                rows=500,
                must_fit=entries < 20_000_000,
                follow_advice=True,
            )


def _large_dictionary(form: files.ArrowForm, entries: int, path: Path) -> None:
    """The documents and many empty entries; of the rows all but 500 are empty, and are left out."""
    lengths = np.zeros(entries + 1, dtype=np.int32)
    lengths[1 : DISTINCT + 1] = [len(text.encode()) for text in documents()]
    buffers = [None, pa.py_buffer(np.cumsum(lengths, dtype=np.int32))]
    buffers.append(pa.py_buffer("".join(documents()).encode()))
    dictionary = pa.Array.from_buffers(pa.string(), entries, buffers)
    rows = np.full(600_000, entries - 1, dtype=np.int32)
    rows[:: len(rows) // 500] = np.arange(500) % DISTINCT
    column = pa.DictionaryArray.from_arrays(pa.array(rows), dictionary)
    files.write_arrow(path, pa.table({"text": column}), form=form)


def _write_arrow(
    rows: int,
    kind: pa.DataType,
    form: files.ArrowForm,
    codec: str | None,
    batch_rows: int,
    path: Path,
) -> None:
    table = table_of(rows, kind)
    files.write_arrow(path, table, form=form, codec=codec, batch_rows=batch_rows)


def parquet_cases() -> Iterator[Case]:
    """Encoding × codec × version of pages; and what DELTA_BYTE_ARRAY makes of few bytes."""
    for encoding in files.PARQUET_ENCODINGS:
        for codec in files.PARQUET_CODECS:
            for version in files.PAGE_VERSIONS:
                sizes = (500, 3000) if encoding == "DELTA_BYTE_ARRAY" else (500,)
                for rows in (*sizes, 20_000) if (len(sizes), codec) == (2, "zstd") else sizes:
                    yield Case(
                        name=f"parquet {encoding}, {codec}, pages {version}, {rows} rows",
                        make=partial(_write_parquet, rows, encoding, codec, version),
                        suffix=".parquet",
                        rows=rows,
                        must_fit=True,
                    )

    yield Case(
        name="parquet DELTA_BYTE_ARRAY, zstd, lengths of 32 bits in one miniblock",
        make=lambda path: files.write_wide_lengths(path, texts(DISTINCT), count=1_200_000),
        suffix=".parquet",
        rows=DISTINCT,
        must_fit=True,
    )


def _write_parquet(rows: int, encoding: str, codec: str, version: str, path: Path) -> None:
    files.write_parquet(path, texts(rows), encoding=encoding, codec=codec, page_version=version)


def other_commands(cases: Sequence[Case]) -> Iterator[Case]:
    """The cases as `--dry-run` and as `train-tokenizer`."""
    commands: tuple[Command, ...] = ("dry-run", "train-tokenizer")
    for command in commands:
        for case in cases:
            name = f"{command}: {case.name}"
            yield replace(case, name=name, command=command, follow_advice=False)


def hostile_cases() -> Iterator[Case]:
    """Files that say little and mean much, or lie."""
    makers: dict[str, tuple[str, Callable[[Path], object]]] = {}
    for form in files.ARROW_FORMS:
        suffix = ".feather" if form == "file" else ".arrow"
        for codec in ("lz4", "zstd"):
            makers[f"{form}, {codec}, a batch of 400 MB in few bytes"] = (
                suffix,
                partial(_repeated_batch, form, codec),
            )
        makers[f"{form}, 15,000 entries of metadata that are one of 20 KB"] = (
            suffix,
            partial(_aliased_arrow, form, 14_999),
        )
        makers[f"{form}, 300 MB of metadata"] = (suffix, partial(_honest_metadata, form))
        makers[f"{form}, 50,000 columns"] = (suffix, partial(_many_columns, form))
        for claimed in (2**62, 2**40, 300 << 20, -2):
            makers[f"{form}, a buffer that claims {claimed} bytes"] = (
                suffix,
                partial(_lying_buffer, form, claimed),
            )
        makers[f"{form}, a dictionary of 300 MB in few bytes"] = (
            suffix,
            partial(_repeated_dictionary, form),
        )
        makers[f"{form}, views that all show one text"] = (suffix, partial(_aliased_views, form))
    for claimed in (900_000, 2**31 - 1):
        footer = files.footer_of_chunks(1, claimed=claimed)
        makers[f"parquet, a footer that claims {claimed} chunks"] = (".parquet", _footer(footer))
    makers["parquet, 400,000 chunks of three bytes"] = (
        ".parquet",
        _footer(files.footer_of_chunks(400_000)),
    )
    makers["parquet, 200,000 columns"] = (
        ".parquet",
        _footer(files.footer_of_chunks(1, columns=200_000)),
    )
    makers["parquet, a column name of 300 MB"] = (".parquet", _long_name)
    makers["parquet, an Arrow schema of 300 MB in few bytes"] = (".parquet", _hidden_schema)
    makers["parquet, 200 MB of metadata"] = (".parquet", _large_key_value)
    for version in files.PAGE_VERSIONS:
        makers[f"parquet, pages {version}, 400 million empty values"] = (
            ".parquet",
            partial(_many_empty, version),
        )
        for encoding in files.PARQUET_ENCODINGS:
            makers[f"parquet, pages {version}, {encoding}, a value of 300 MB"] = (
                ".parquet",
                partial(_giant_value, encoding, version),
            )
        makers[f"parquet, pages {version}, one value of 30 MB among small ones"] = (
            ".parquet",
            partial(_large_among_small, version),
        )
    makers["parquet, a dictionary of millions of empty entries"] = (".parquet", _wide_dictionary)
    for name, (suffix, make) in makers.items():
        yield Case(name=f"hostile {name}", make=make, suffix=suffix, rows=0, must_fit=False)


def _repeated_batch(form: files.ArrowForm, codec: str, path: Path) -> None:
    value = "words and more words. " * 1000
    files.write_arrow(path, pa.table({"text": [value] * 18_000}), form=form, codec=codec)


def _aliased_arrow(form: files.ArrowForm, entry_count: int, path: Path) -> None:
    metadata = files.large_metadata(20_000, entry_count)
    table = pa.table({"text": ["some text"]}).replace_schema_metadata(metadata)
    files.write_arrow(path, table, form=form)
    path.write_bytes(files.alias_metadata(path.read_bytes(), entry_count))


def _honest_metadata(form: files.ArrowForm, path: Path) -> None:
    metadata = {"long": "v" * 300_000_000}
    files.write_arrow(path, pa.table({"text": ["a"]}).replace_schema_metadata(metadata), form=form)


def _many_columns(form: files.ArrowForm, path: Path) -> None:
    table = pa.table({"text": ["some text"]} | {f"c{number}": [1] for number in range(50_000)})
    files.write_arrow(path, table, form=form)


def _lying_buffer(form: files.ArrowForm, claimed_bytes: int, path: Path) -> None:
    value = "some words " * 9091
    files.write_arrow(path, pa.table({"text": [value]}), form=form, codec="zstd")
    path.write_bytes(files.lie_about_unpacked(path.read_bytes(), len(value), claimed_bytes))


def _repeated_dictionary(form: files.ArrowForm, path: Path) -> None:
    entries = pa.array([f"{number} " + "words " * 50_000 for number in range(1000)])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), entries)
    files.write_arrow(path, pa.table({"text": column}), form=form, codec="zstd")


def _aliased_views(form: files.ArrowForm, path: Path) -> None:
    """20,000 views of one text of 100 KB: 2 GB, were they written out at once."""
    text = b"some words that are shared " * 3800
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    buffers = [None, pa.py_buffer(view * 20_000), pa.py_buffer(text)]
    column = pa.Array.from_buffers(pa.string_view(), 20_000, buffers)
    files.write_arrow(path, pa.table({"text": column.slice(0, 3000)}), form=form)


def _footer(footer: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(files.wrap_footer(footer))


def _long_name(path: Path) -> None:
    path.write_bytes(files.wrap_footer(files.footer_of_chunks(1, name=b"n" * 300_000_000)))


def _hidden_schema(path: Path) -> None:
    schema = pa.schema([("text", pa.string())], metadata=files.large_metadata(20_000, 14_999))
    message = files.alias_metadata(schema.serialize().to_pybytes(), 14_999)
    files.hide_schema_in_parquet(path, message)


def _large_key_value(path: Path) -> None:
    table = pa.table({"text": ["some text"]}).replace_schema_metadata({"long": "v" * 90_000_000})
    pq.write_table(table, path)  # once as it is, and once more inside the Arrow schema


def _many_empty(version: str, path: Path) -> None:
    """A page of 4 million empty values, and a header and a footer that make 400 million of them."""
    files.write_parquet(
        path, [""] * 4_000_000, encoding="DELTA_BYTE_ARRAY", codec="zstd", page_version=version
    )
    path.write_bytes(
        path.read_bytes().replace(files.zigzag(4_000_000), files.zigzag(400_000_000)[:4])
    )


def _giant_value(encoding: str, version: str, path: Path) -> None:
    giant = "some words that repeat. " * 12_500_000
    values = ["small", giant, giant, "small"]
    files.write_parquet(path, values, encoding=encoding, codec="zstd", page_version=version)


def _large_among_small(version: str, path: Path) -> None:
    values = ["small"] * 8 + ["some words that repeat. " * 1_250_000] + ["small"] * 8
    files.write_parquet(path, values, codec="zstd", page_version=version)


def _wide_dictionary(path: Path) -> None:
    entries = [f"{number:x}" for number in range(3_000_000)]
    pq.write_table(
        pa.table({"text": entries}),
        path,
        compression="zstd",
        dictionary_pagesize_limit=1 << 30,
        data_page_size=1 << 30,
        row_group_size=len(entries),
    )


def all_cases() -> list[Case]:
    """Every case, in an order that does not change."""
    cases = [*arrow_cases(), *parquet_cases(), *hostile_cases()]
    return [*cases, *other_commands(cases)]


def run_case(case: Case, folder: Path) -> tuple[Outcome, BoxResult, str]:
    """The case as it is, and where its advice is to be followed, again with that much memory."""
    path = folder / f"input{case.suffix}"
    case.make(path)
    outcome, result = _run(case, path, MEMORY)
    more = re.search(r"by about (\d+)MiB", result.stderr)
    if outcome != "refused" or not case.follow_advice or not more:
        return outcome, result, MEMORY
    enough = f"{parse_bytes(MEMORY) // MIB + int(more[1])}MiB"
    again, result = _run(replace(case, must_fit=True), path, enough, "--workers", "1")
    return again if again in FAILED else "refused", result, f"{MEMORY}, {again} in {enough}"


def _run(case: Case, path: Path, memory: str, *flags: str) -> tuple[Outcome, BoxResult]:
    drop_from_page_cache(path)
    with tempfile.TemporaryDirectory(prefix="lowtide-budget-") as made:
        out = Path(made) / "out"
        command = [sys.executable, "-m", "lowtide", *_arguments(case.command), str(path)]
        command += ["--memory", memory, "--out", str(out), *flags]
        result = run_in_box(command, limit_bytes=parse_bytes(memory), timeout=TIMEOUT_SECONDS)
        return _judge(case, result, out), result


def _arguments(command: Command) -> list[str]:
    if command == "train-tokenizer":
        return ["train-tokenizer", "--vocab-size", "400", "--val", "0"]
    return ["tokenize", "--val", "0", *(["--dry-run"] if command == "dry-run" else [])]


def _judge(case: Case, result: BoxResult, out: Path) -> Outcome:
    if result.oom_kills:
        return "OOM"
    if result.returncode < 0 or result.returncode > 127:
        return "ABORT"
    if result.returncode:
        is_told = result.returncode in (1, 2, 3, 4) and "error:" in result.stderr
        if not is_told:
            return "ABORT"
        return "REFUSED" if case.must_fit else "refused"
    if case.command == "tokenize" and case.rows and found_digest(out) != expected_digest(case.rows):
        return "WRONG"
    return "done"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run only the cases whose name contains this")
    parser.add_argument("--sample", type=int, help="run only so many, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    cases = [case for case in all_cases() if chosen.only in case.name]
    if chosen.sample:
        cases = random.Random(chosen.seed).sample(cases, chosen.sample)
    counts: Counter[str] = Counter()
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="lowtide-inputs-") as folder:
            outcome, result, memory = run_case(case, Path(folder))
        counts[outcome] += 1
        peak = f"{result.peak_private_bytes / MIB:.0f} MiB"
        print(f"{outcome:8} {peak:>9}  {case.name} ({memory})", flush=True)
        if outcome in FAILED:
            print(result.stderr[-1500:], file=sys.stderr, flush=True)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    print(f"{counts.total()} cases in {MEMORY}, {how_boxes_work()}: {counted}")
    sys.exit(1 if any(counts[outcome] for outcome in FAILED) else 0)


if __name__ == "__main__":
    main()
