"""`--dry-run` tells what a run would come to, writes nothing, and refuses what cannot fit."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from bench.dry_run import CORPORA, compare, make_corpora
from tests.commands import call, lowtide

Capsys = pytest.CaptureFixture[str]
TEXT = "the tide rises over sand, salt and 1024 stones; nobody (not even Ann) sees it: slowly…"
WORDS = TEXT.split()
KINDS = (
    "a.txt",
    "a.txt.gz",
    "a.jsonl",
    "a.jsonl.gz",
    "a.jsonl.zst",
    "a.parquet",
    "a.arrow",
    "many",
)


@pytest.fixture(scope="module")
def homogeneous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same 8 MB of documents in every format: more than the samples, so that it is predicted."""
    folder = tmp_path_factory.mktemp("homogeneous")
    chance = random.Random(7)
    documents = [" ".join(chance.choices(WORDS, k=chance.randint(20, 400))) for _ in range(7000)]
    text = "\n".join(documents).encode()
    lines = "".join(json.dumps({"id": 7, "text": one}) + "\n" for one in documents).encode()
    table = pa.table({"text": documents})
    (folder / "a.txt").write_bytes(text)
    (folder / "a.txt.gz").write_bytes(gzip.compress(text, 1))
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines, 1))
    (folder / "a.jsonl.zst").write_bytes(zstandard.compress(lines))
    pq.write_table(table, folder / "a.parquet", row_group_size=1500)
    with pa.ipc.new_stream(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, 1000)
    (folder / "many").mkdir()
    for number in range(600):
        part = documents[number * 11 : (number + 1) * 11]
        (folder / "many" / f"{number:03}.txt").write_text("\n".join(part))
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_what_is_predicted_comes_true_within_5_percent(
    capsys: Capsys, homogeneous: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    separator = "file" if name == "many" else "line"
    command = ("tokenize", homogeneous / name, "--out", out, "--separator", separator, "--json")
    predicted = call(capsys, *command, "--dry-run")
    assert predicted.code == 0
    assert not out.exists()
    real = call(capsys, *command).json
    for figure in ("tokens", "documents", "text_bytes"):
        assert predicted.json[figure] == pytest.approx(real[figure], rel=0.05), figure
    written = sum(path.stat().st_size for path in out.iterdir())
    assert predicted.json["disk_needed_bytes"] == pytest.approx(written, rel=0.05)
    if name == "a.jsonl":
        assert 0 < float(str(predicted.json["tokens_spread"])) < 0.05


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 MB of documents of 20 to 60,000 characters in forms that are hard to predict."""
    folder = tmp_path_factory.mktemp("uneven")
    make_corpora(folder, 24)
    return folder


@pytest.mark.slow  # whole corpora are tokenized, and predicted with 20 seeds each
@pytest.mark.parametrize("name", CORPORA)
def test_uneven_corpora_are_predicted_within_the_stated_spread(
    uneven: Path, tmp_path: Path, name: str
) -> None:
    found = compare(uneven / name, tmp_path / "out", seeds=20)
    assert found.covered >= 0.95
    assert found.worst("tokens") < 0.1
    assert found.worst("documents") < 0.1
    again = (compare(uneven / name, tmp_path / "out", seeds=1).time_error for _ in range(4))
    assert found.time_error < 0.5 or any(error < 0.5 for error in again)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_long_rows_are_predicted_like_short_ones(capsys: Capsys, tmp_path: Path, kind: str) -> None:
    texts = [" ".join(random.Random(row).choices(WORDS, k=120_000)) for row in range(12)]
    path = tmp_path / f"long.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts}), path)
    else:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = ("tokenize", path, "--out", tmp_path / "out", "--json")
    predicted = call(capsys, *command, "--dry-run").json
    real = call(capsys, *command).json
    assert predicted["tokens"] == pytest.approx(real["tokens"], rel=0.05)
    assert predicted["documents"] == pytest.approx(12, abs=1)


def test_one_long_text_is_one_document_and_its_tail_another(
    capsys: Capsys, homogeneous: Path, tmp_path: Path
) -> None:
    command = ("tokenize", homogeneous / "a.txt", "--out", tmp_path / "out", "--dry-run", "--json")
    assert call(capsys, *command).json["documents"] == 2
    assert call(capsys, *command, "--val", "0").json["documents"] == 1


def test_every_figure_says_where_it_comes_from(homogeneous: Path, tmp_path: Path) -> None:
    told = lowtide("tokenize", homogeneous, "--out", tmp_path / "out", "--dry-run")
    assert told.code == 0
    rows = {line[:12].strip(): line[13:] for line in told.out.splitlines()}
    assert "(measured)" in rows["input"]
    assert "± " in rows["tokens"]
    assert "(predicted" in rows["tokens"]
    assert "predicted" in rows["time"]
    assert "needed (predicted)" in rows["disk"]
    assert "free (measured)" in rows["disk"]
    assert "budget" in rows["memory"]
    assert list(tmp_path.iterdir()) == []


def test_a_budget_that_is_too_small_is_refused_and_the_advice_works(
    capsys: Capsys, homogeneous: Path, tmp_path: Path
) -> None:
    command = ("tokenize", homogeneous / "a.txt", "--out", tmp_path / "out", "--dry-run")
    refused = call(capsys, *command, "--memory", "32MiB")
    assert refused.code == 3
    flag, size = refused.advice
    assert flag == "--memory"
    assert call(capsys, *command, "--memory", size).code == 0
    smaller = f"{int(size.removesuffix('MiB')) - 1}MiB"
    assert call(capsys, *command, "--memory", smaller).code == 3  # it was the smallest


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on a disk of 256 KiB: a real one where we may mount, a pretended one elsewhere."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "lowtide-test", str(folder)]
    may_mount = os.name == "posix" and os.geteuid() == 0 and shutil.which("mount")
    if may_mount and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        yield folder
        subprocess.run(["umount", str(folder)], check=True)
        return
    small = SimpleNamespace(total=256 << 10, used=0, free=256 << 10)
    monkeypatch.setattr("lowtide.stages.dry_run.shutil.disk_usage", lambda _: small)
    yield folder


def test_a_disk_that_is_too_small_is_refused_and_another_works(
    capsys: Capsys, homogeneous: Path, small_disk: Path
) -> None:
    command = ("tokenize", homogeneous / "a.txt", "--dry-run", "--out")
    refused = call(capsys, *command, small_disk / "out")
    assert refused.code == 3
    assert "256.0 KiB are free" in refused.problem
    assert "--out" in refused.hint
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_is_large_enough_is_accepted(
    capsys: Capsys, small_disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a few words")
    command = ("tokenize", tmp_path / "a.txt", "--dry-run", "--out", small_disk / "out")
    assert call(capsys, *command).code == 0


@pytest.mark.parametrize("command", ["tokenize", "train-tokenizer"])
def test_a_dry_run_needs_no_folder_and_makes_none(
    capsys: Capsys, homogeneous: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, command, homogeneous / "a.txt", "--dry-run").code == 0
    assert call(capsys, command, "--dry-run", homogeneous / "a.txt").code == 0
    refused = call(capsys, command, homogeneous / "a.txt")
    assert (refused.code, list(tmp_path.iterdir())) == (2, [])


@pytest.mark.parametrize("line", ["no JSON", '{"text": ""}', ""])
def test_inputs_without_text_end_as_the_run_does(capsys: Capsys, tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(f"{line}\n" * 100)
    words = ("tokenize", tmp_path / "a.jsonl", "--out", tmp_path / "out", "--bad-text", "skip")
    assert call(capsys, *words, "--dry-run").code == call(capsys, *words).code
