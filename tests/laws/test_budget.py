"""The budget holds: jobs finish inside a cgroup as large as their budget. `bench/budget.py` takes 1 GB."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lowtide
from lowtide.errors import DoesNotFitError
from lowtide.shards.layout import ShardLayout
from lowtide.units import MIB, parse_bytes
from tests.boxes import BoxResult, drop_from_page_cache, run_in_box
from tests.corpora import SEPARATOR, make_document
from tests.shards.streams import NARROW, Stream, make_dataset

BUDGET = "256MiB"


def tokenize_in_box(tmp_path: Path, source: Path, *flags: str, memory: str = BUDGET) -> BoxResult:
    drop_from_page_cache(source)
    command = [sys.executable, "-m", "lowtide", "tokenize", str(source), "--memory", memory]
    command += ["--out", str(tmp_path / "out"), *flags]
    return run_in_box(command, limit_bytes=parse_bytes(memory), timeout=300)


@pytest.fixture(scope="module")
def paragraphs() -> list[str]:
    source = random.Random(11)
    return [make_document(source, 3000) for _ in range(400)]


def shuffled(paragraphs: list[str], size_bytes: int) -> list[str]:
    """Documents of about 12 KB until they are `size_bytes` together."""
    source = random.Random(12)
    documents, total = [], 0
    while total < size_bytes:
        documents.append("".join(source.choices(paragraphs, k=4)))
        total += len(documents[-1].encode())
    return documents


def write_kind(kind: str, path: Path, documents: list[str]) -> None:
    if kind == "text":
        path.write_text("".join(document + SEPARATOR for document in documents), newline="")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    else:
        table = pa.table({"text": documents})
        pq.write_table(table, path, row_group_size=500)


@pytest.mark.slow
@pytest.mark.cgroup
@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet"])
def test_the_peak_does_not_grow_with_the_input(
    tmp_path: Path, paragraphs: list[str], kind: str
) -> None:
    peaks = []
    for name, size_bytes in (("small", 16_000_000), ("large", 64_000_000)):
        path = tmp_path / f"{name}.{kind if kind != 'text' else 'txt'}"
        write_kind(kind, path, shuffled(paragraphs, size_bytes))
        result = tokenize_in_box(tmp_path / name, path, "--separator", SEPARATOR)
        assert (result.returncode, result.oom_kills) == (0, 0), result.stderr
        peaks.append(result.peak_private_bytes)
    # 48 MB more of input may fill the encoder's cache further, which has 24 MiB, and nothing else.
    assert peaks[1] < peaks[0] + 24 * MIB


@pytest.mark.slow
@pytest.mark.cgroup
def test_words_never_seen_before_do_not_fill_memory(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    numbers = np.arange(7_000_000) * 4_826_809_333 % 26**8
    spelled = np.full((len(numbers), 9), ord(" "), dtype=np.uint8)
    spelled[:, :8] = ord("a") + numbers[:, None] // 26 ** np.arange(8) % 26
    path.write_bytes(spelled.tobytes())
    result = tokenize_in_box(tmp_path, path)
    assert (result.returncode, result.oom_kills) == (0, 0), result.stderr
    assert result.peak_private_bytes < parse_bytes(BUDGET)


@pytest.mark.cgroup
def test_one_text_without_a_separator_is_cut_and_stays_small(
    tmp_path: Path, paragraphs: list[str]
) -> None:
    path = tmp_path / "one.txt"
    path.write_text("".join(shuffled(paragraphs, 60_000_000)), newline="")
    result = tokenize_in_box(tmp_path, path)
    assert (result.returncode, result.oom_kills) == (0, 0), result.stderr
    assert result.peak_private_bytes < 0.75 * parse_bytes(BUDGET)


@pytest.mark.cgroup
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_giant_row_is_refused_before_memory_is_gone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"giant.{kind}"
    value = "some words that repeat. " * 5_000_000
    if kind == "jsonl":
        path.write_text(json.dumps({"text": "small"}) + "\n" + json.dumps({"text": value}) + "\n")
    else:
        pq.write_table(pa.table({"text": ["small", value]}), path, use_dictionary=False)
    result = tokenize_in_box(tmp_path, path)
    assert (result.returncode, result.oom_kills) == (1, 0), result.stderr
    assert "error:" in result.stderr
    assert "--memory" in result.stderr


@pytest.mark.cgroup
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_largest_row_that_is_allowed_fits(tmp_path: Path, kind: str) -> None:
    """Not only the refusal is right but the limit: a row just below it finishes inside the box."""
    path = tmp_path / f"large.{kind}"
    value = "слова и ещё слова, " * (12 * MIB // 34)
    if kind == "jsonl":
        path.write_text(json.dumps({"text": value}, ensure_ascii=False) + "\n")
    else:
        pq.write_table(pa.table({"text": [value]}), path, use_dictionary=False)
    result = tokenize_in_box(tmp_path, path, "--val", "0")
    assert (result.returncode, result.oom_kills) == (0, 0), result.stderr


def test_too_small_a_budget_names_the_smallest_that_works(
    tmp_path: Path, paragraphs: list[str]
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(paragraphs[0], newline="")
    with pytest.raises(DoesNotFitError) as error:
        lowtide.tokenize([path], tmp_path / "out", memory="20MiB")
    assert not (tmp_path / "out").exists()
    advised = error.value.remedy.split("`")[1].removeprefix("--memory ")
    result = tokenize_in_box(tmp_path, path, memory=advised)
    assert (result.returncode, result.oom_kills) == (0, 0), result.stderr


@pytest.mark.cgroup
@pytest.mark.parametrize("document_tokens", [1, 4])
@pytest.mark.parametrize("source", ["own", "peer"])
def test_an_export_fits_into_the_smallest_budget(
    tmp_path: Path, source: str, document_tokens: int
) -> None:
    """Whatever the documents: those of a peer's file are found by a scan, up to one for each token."""
    ids = np.ones(12_000_000, dtype=np.uint16)
    ids[document_tokens - 1 :: document_tokens] = NARROW - 1
    ends = np.arange(document_tokens, len(ids) + 1, document_tokens)
    layout = ShardLayout(format="nanogpt", vocabulary_size=NARROW)
    make_dataset(tmp_path / "in", layout, train=Stream(ids, ends))
    path, named = tmp_path / "in", None
    if source == "peer":
        path, named = path / "train.bin", "gpt2"
    with pytest.raises(DoesNotFitError) as error:
        lowtide.export(path, tmp_path / "out", "llmc", tokenizer=named, memory="1MiB")
    advised = error.value.remedy.split("`")[1].removeprefix("--memory ")
    drop_from_page_cache(tmp_path / "in" / "train.bin")
    command = [sys.executable, "-m", "lowtide", "export", str(path), "--to", "llmc"]
    command += ["--out", str(tmp_path / "out"), "--memory", advised]
    command += ["--tokenizer", named] if named else []
    result = run_in_box(command, limit_bytes=parse_bytes(advised), timeout=300)
    assert (result.returncode, result.oom_kills) == (0, 0), result.stderr
