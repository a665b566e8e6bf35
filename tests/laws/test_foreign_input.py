"""What is not text is refused by name, and its hint works. What is skipped is told, and nothing is guessed."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lowtide.errors import DataError, UsageError
from lowtide.source.find_inputs import InputKind, find_inputs, survey_inputs
from tests.commands import LOWTIDE, Outcome, assert_nothing_half_written, call, manifest_of

Capsys = pytest.CaptureFixture[str]
TEXT = b"the tide comes in and the tide goes out again\n" * 40
HTML = b"\n <!DOCTYPE HTML>\n<html><body>the tide</body></html>"
LINES = b"".join(json.dumps({"text": f"row {n} \xe9", "id": n}).encode() + b"\n" for n in range(9))
TABLE = pa.table({"text": ["one", "two"]})


def tarred(mode: str, form: int = tarfile.PAX_FORMAT) -> bytes:
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode=f"w:{mode}", format=form) as archive:  # type: ignore[call-overload]
        info = tarfile.TarInfo("a.txt")
        info.size = len(TEXT)
        archive.addfile(info, io.BytesIO(TEXT))
    return kept.getvalue()


def zipped() -> bytes:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w") as archive:
        archive.writestr("a.txt", TEXT)
    return kept.getvalue()


def database() -> bytes:
    with sqlite3.connect(":memory:") as base:
        base.execute("create table t (text)")
        return base.serialize()


def saved(save: Callable[[io.BytesIO], object]) -> bytes:
    kept = io.BytesIO()
    save(kept)
    return kept.getvalue()


def arrow_file() -> bytes:
    kept = io.BytesIO()
    with pa.ipc.new_file(kept, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return kept.getvalue()


PROVEN = {
    "a.tar": tarred(""),
    "a.gnu.tar": tarred("", tarfile.GNU_FORMAT),
    "old": tarred("", tarfile.USTAR_FORMAT).replace(b"ustar\x0000", bytes(8)),
    "a.tar.gz": tarred("gz"),
    "a.tgz": tarred("gz"),
    "a.tar.zst": zstandard.compress(tarred("")),
    "a.txt.zst": zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=24)
    ).compress(tarred("") * 900),
    "a.jsonl.gz": tarred("gz"),
    "a.zip": zipped(),
    "a.docx": zipped(),
    "a.7z": b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(range(256)),
    "a.rar": b"Rar!\x1a\x07\x01\x00" + bytes(range(256)),
    "a.xz": lzma.compress(TEXT),
    "a.jsonl.xz": lzma.compress(LINES),
    "a.bz2": bz2.compress(TEXT),
    "a.lz4": b"\x04\x22\x4d\x18\x64\x40\xa7" + TEXT,
    "gzipped.txt": gzip.compress(TEXT),
    "packed.jsonl": zstandard.compress(LINES),
    "twice.txt.gz": gzip.compress(gzip.compress(TEXT)),
    "a.pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + TEXT,
    "a.gif": b"GIF89a\x01\x00\x01\x00\x80\x00\x00\xff\xff\xff",
    "a.wav": b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(range(128, 255)) + bytes(9),
    "a.png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)),
    "a.jpg": b"\xff\xd8\xff\xe0" + bytes(range(1, 256)),
    "program": Path(sys.executable).resolve().read_bytes()[:20_000],
    "a.db": database(),
    "a.npy": saved(lambda kept: np.save(kept, np.arange(99))),
    "a.pkl": pickle.dumps({"text": "one"}),
    "a.pt": saved(lambda kept: np.savez(kept, a=np.arange(9))),
    "rows.txt": saved(lambda kept: pq.write_table(TABLE, kept)),
    "feathers": arrow_file(),
    "a.txt": "the tide".encode("utf-16"),
    "b.txt": ("the tide comes in " * 9).encode("utf-16-be"),
    "c.txt": "the tide".encode("utf-32"),
    "zeros.txt": bytes(4096),
    "random.txt": bytes(n * 7919 % 256 for n in range(3000)),
}
MARKUP = {
    "a.html": b"just a word",
    "a.htm": HTML,
    "page": HTML,
    "page.txt": b"\xef\xbb\xbf<html lang='en'>hi",
    "a.csv": b"id,text\n1,one\n",
    "a.tsv": b"id\ttext\n1\tone\n",
    "a.csv.gz": gzip.compress(b"id,text\n1,one\n"),
    "array.json": b'[\n {"text": "one"}]',
    "object.json": b'{\n "text": "one"}',
    "lines.json": LINES,
    "a.xml": b"<doc>just a word</doc>",
    "a.ipynb": b'{"cells": []}',
    "a.rtf": b"{\\rtf1 just a word}",
    "a.ps": b"%!PS-Adobe-3.0\nshowpage",
    "plain.pdf": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n",
    "old.pdf": b"%PDF-1.4\r" + TEXT,
}


@pytest.fixture
def piped(tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Puts bytes on standard input."""
    before = os.dup(0)

    def put(data: bytes) -> None:
        (tmp_path / "piped").write_bytes(data)
        with (tmp_path / "piped").open("rb") as file:
            os.dup2(file.fileno(), 0)

    yield put
    os.dup2(before, 0)
    os.close(before)


def run(capsys: Capsys, tmp_path: Path, *words: str | Path) -> Outcome:
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    return call(capsys, "tokenize", *words, "--out", tmp_path / "out", "--val", "0")


@pytest.mark.parametrize("name", PROVEN)
def test_what_is_no_text_is_refused_whatever_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(PROVEN[name])
    for stated in (None, "text", "jsonl"):
        if name == "a.txt.zst":  # its window is larger than what is held to look at it
            break
        with pytest.raises(DataError) as caught:
            find_inputs([str(tmp_path / name)], input_format=stated)  # type: ignore[arg-type]
        assert name in caught.value.problem
        assert "--bad-text" not in caught.value.remedy


@pytest.mark.parametrize("name", ["a.tar.gz", "a.txt.zst", "a.xz", "a.pdf", "page", "a.csv"])
@pytest.mark.parametrize("policy", ["fail", "replace", "skip"])
@pytest.mark.parametrize("command", ["tokenize", "train-tokenizer"])
def test_no_policy_for_bad_text_lets_it_in(
    capsys: Capsys, tmp_path: Path, name: str, policy: str, command: str
) -> None:
    path = tmp_path / name
    path.write_bytes((PROVEN | MARKUP)[name])
    failed = call(capsys, command, path, "--out", tmp_path / "out", "--bad-text", policy)
    assert failed.code == 1
    assert name in failed.problem
    assert "--bad-text" not in failed.hint
    assert_nothing_half_written(tmp_path / "out")


@pytest.mark.parametrize("name", MARKUP)
def test_markup_is_refused_until_the_format_is_stated(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(MARKUP[name])
    with pytest.raises(DataError) as caught:
        find_inputs([str(tmp_path / name)])
    assert "--input-format text" in caught.value.remedy
    (found,) = find_inputs([str(tmp_path / name)], input_format="text")
    assert found.kind is InputKind.TEXT


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"one\x00two",
        b"[Chapter 1]\nIt was",
        b"{ int x; }",
        b"%PDFs are files",
        b"PAR1 is a name",
        b"MZ, he wrote",
        b"BZh9 is a key",
        b"GIF89a is a format",
        b"RIFF....WAVE is how it begins",
        b"%PDF-1 explained",
        b"%PDF-1.4 is the version after 1.3",
        b"BZh91AY&SY is how bzip2 begins",
        b"# HTML\n<html>",
        b"<htmlish>",
        b"\x1b[1mbold\x1b[0m",
        "naïve 中 😀".encode(),
        "é".encode("latin-1"),
        b"a" * 8191 + "é".encode(),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.py", "a.md", "a"])
def test_text_is_text(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert [item.kind for item in find_inputs([str(tmp_path / name)])] == [InputKind.TEXT]


@pytest.mark.parametrize(
    "content",
    [
        b"GIF89a\x00 and the rest",
        b"GIF89a is a caf\xe9 house",
        b"PK\x03\x04 is a sign",
        b"\x04\x22\x4d\x18 is a sign",
        b"%PDF-1.4\n1 0 obj",
    ],
)
def test_what_is_said_to_be_text_and_may_be_is_read(
    capsys: Capsys, tmp_path: Path, piped: Callable[[bytes], None], content: bytes
) -> None:
    (tmp_path / "a").write_bytes(content)
    piped(content)
    with pytest.raises(DataError):
        find_inputs([str(tmp_path / "a")])
    for source in (tmp_path / "a", "-"):
        done = run(
            capsys, tmp_path, source, "--input-format", "text", "--bad-text", "replace", "--json"
        )
        assert done.code == 0
        assert manifest_of(tmp_path / "out")["documents"] == 1


@pytest.mark.parametrize("name", ["a.xz", "a.bz2", "gzipped.txt", "packed.jsonl", "a.jsonl.xz"])
def test_the_hint_for_a_compressed_file_works(capsys: Capsys, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(PROVEN[name])
    command = run(capsys, tmp_path, path).hint.rpartition(": ")[2].strip("`")
    if not shutil.which(command.split()[0]):
        pytest.skip(f"{command.split()[0]} is not installed")
    command = command.replace("lowtide tokenize", f"{' '.join(LOWTIDE)} tokenize")
    more = " --input-format jsonl" if "jsonl" in name else ""
    done = subprocess.run(
        ["sh", "-c", f"{command}{more} --val 0 --out {tmp_path / 'out'}"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert manifest_of(tmp_path / "out")["text_bytes"] == (
        sum(len(json.loads(line)["text"].encode()) for line in LINES.splitlines())
        if "jsonl" in name
        else len(TEXT)
    )


@pytest.mark.parametrize(
    ("name", "kind"), [("lines.json", "jsonl"), ("rows.txt", "parquet"), ("feathers", "arrow")]
)
def test_the_hint_for_rows_by_another_name_works(
    capsys: Capsys, tmp_path: Path, name: str, kind: str
) -> None:
    path = tmp_path / name
    path.write_bytes((PROVEN | MARKUP)[name])
    advice = run(capsys, tmp_path, path).advice
    assert advice == ["--input-format", kind]
    assert run(capsys, tmp_path, path, *advice).code == 0
    manifest = manifest_of(tmp_path / "out")
    assert manifest["documents"] == (9 if kind == "jsonl" else 2)
    assert manifest["settings"]["input_format"] == kind  # type: ignore[index]
    assert call(capsys, "verify", tmp_path / "out").code == 0


def test_the_format_is_part_of_what_a_run_is(capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    command = ("tokenize", path, "--out", tmp_path / "out", "--val", "0")
    assert call(capsys, *command).code == 0
    refused = call(capsys, *command, "--input-format", "text")
    assert refused.code == 2
    assert "--input-format" in refused.problem
    assert call(capsys, *command, "--input-format", "text", "--restart").code == 0
    assert manifest_of(tmp_path / "out")["documents"] == 1


def test_a_tokenizer_is_learnt_from_the_stated_format(capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_bytes(LINES)
    command = ("train-tokenizer", path, "--vocab-size", "270", "--json")
    refused = call(capsys, *command, "--out", tmp_path / "out")
    assert refused.code == 1
    done = call(capsys, *command, "--out", tmp_path / "out", *refused.advice)
    assert done.json["documents"] == 9


# Standard input


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (LINES, "--input-format jsonl"),
        (b'\xef\xbb\xbf {"text": "' + b"long " * 9000 + b'"}\n', "--input-format jsonl"),
        (MARKUP["array.json"], "--input-format text"),
        (MARKUP["object.json"], "--input-format text"),
        (HTML, "--input-format text"),
        (PROVEN["a.xz"], "xz -dc |"),
        (PROVEN["a.tar.gz"], "gzip -dc |"),
        (PROVEN["a.pdf"], "pdftotext"),
        (MARKUP["old.pdf"], "--input-format text"),
        (PROVEN["rows.txt"], "save it"),
    ],
    ids=[
        "lines",
        "a long line",
        "array",
        "object",
        "html",
        "xz",
        "gzip",
        "pdf",
        "plain pdf",
        "parquet",
    ],
)
def test_standard_input_is_not_guessed_at(
    capsys: Capsys,
    tmp_path: Path,
    piped: Callable[[bytes], None],
    data: bytes,
    remedy: str,
) -> None:
    piped(data)
    failed = run(capsys, tmp_path, "-")
    assert failed.code == 1
    assert failed.problem.startswith("standard input is ")
    assert remedy in failed.hint
    assert "--bad-text" not in failed.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "data",
    [b"[[Category]] of tides", b'["Ebb," they said] and went', b"[[[[[" * 99, b'[{"tide"} 1]'],
)
def test_text_in_brackets_on_standard_input_is_text(
    capsys: Capsys, tmp_path: Path, piped: Callable[[bytes], None], data: bytes
) -> None:
    piped(data)
    assert run(capsys, tmp_path, "-").code == 0


@pytest.mark.parametrize("data", [b'[["a", 1], 2]', b'["a"\n, 2]', b'[{"a": ' + b"[" * 9000])
def test_an_array_on_standard_input_is_refused_until_it_is_said_to_be_text(
    capsys: Capsys, tmp_path: Path, piped: Callable[[bytes], None], data: bytes
) -> None:
    piped(data)
    assert run(capsys, tmp_path, "-").code == 1
    piped(data)
    assert run(capsys, tmp_path, "-", "--input-format", "text").code == 0


@pytest.mark.parametrize(("stated", "documents"), [("jsonl", 9), ("text", 1)])
def test_standard_input_is_what_it_is_said_to_be(
    capsys: Capsys,
    tmp_path: Path,
    piped: Callable[[bytes], None],
    stated: str,
    documents: int,
) -> None:
    piped(LINES)
    assert run(capsys, tmp_path, "-", "--input-format", stated).code == 0
    assert manifest_of(tmp_path / "out")["documents"] == documents


def test_a_bad_line_of_standard_input_has_its_number(
    capsys: Capsys, tmp_path: Path, piped: Callable[[bytes], None]
) -> None:
    row = json.dumps({"text": "many words " * 30}).encode() + b"\n"
    lines = [row] * 9000  # several blocks
    lines[7000:7000], lines[20:20] = [b"{broken\n"], [b"[]\n"]
    piped(b"\xef\xbb\xbf" + b"".join(lines))
    assert run(capsys, tmp_path, "-", "--input-format", "jsonl", "--bad-text", "skip").code == 0
    listed = manifest_of(tmp_path / "out")["first_bad_rows"]
    assert [row["position"] for row in listed] == [21, 7002]  # type: ignore[attr-defined]


@pytest.mark.parametrize("stated", ["parquet", "arrow"])
def test_columns_do_not_come_by_standard_input(stated: str) -> None:
    with pytest.raises(UsageError):
        find_inputs(["-"], input_format=stated)  # type: ignore[arg-type]


# What a folder or a glob leaves out


def lay(folder: Path, *names: str, content: bytes = b"text") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def skipped(*arguments: Path, **options: object) -> dict[str, tuple[int, tuple[str, ...]]]:
    found = survey_inputs([str(path) for path in arguments], **options)  # type: ignore[arg-type]
    return {
        item.reason: (item.count, tuple(Path(name).name for name in item.first))
        for item in found.skipped
    }


def test_a_folder_tells_what_it_leaves_out(tmp_path: Path) -> None:
    lay(tmp_path, "a.py", "b/c.md", ".env", "x.tmp", "old~", "y.zip")
    lay(tmp_path, *(f".git/objects/{number}" for number in range(20)), ".git/config")
    lay(tmp_path, "made/lowtide.json", "made/train_000000.npy", "made/val_000000.npy")
    lay(tmp_path, "z.pyc", "deep/z.bin", content=b"\x00\x01binary")
    for name in ("a.csv", "page", "lines.json"):
        lay(tmp_path, name, content=MARKUP[name])
    (tmp_path / "elsewhere").symlink_to(tmp_path / "b")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere")
    assert skipped(tmp_path) == {
        "hidden": (22, (".env", ".git")),
        "half-written, locks or backups": (2, ("old~", "x.tmp")),
        "binary data": (2, ("z.bin", "z.pyc")),
        "written by lowtide": (1, ("made",)),
        "links to folders": (1, ("elsewhere",)),
        "no files (broken links, pipes)": (1, ("broken.txt",)),
        "a CSV table": (1, ("a.csv",)),
        "HTML": (1, ("page",)),
        "JSON, one object a line": (1, ("lines.json",)),
        "named .zip": (1, ("y.zip",)),
    }


def test_a_folder_of_rows_tells_of_the_rest(tmp_path: Path) -> None:
    lay(tmp_path, "a.jsonl", "b.txt", "README.md", "c.csv")
    assert skipped(tmp_path) == {"beside rows": (2, ("README.md", "c.csv"))}


def test_a_folder_without_text_says_what_it_holds(tmp_path: Path) -> None:
    lay(tmp_path, "a.zip", content=PROVEN["a.zip"])
    with pytest.raises(UsageError, match="a zip archive 1 "):
        find_inputs([str(tmp_path)])


def test_a_data_file_in_a_folder_is_refused_and_not_skipped(tmp_path: Path) -> None:
    lay(tmp_path, "a.txt")
    lay(tmp_path, "b.txt", content=PROVEN["a.txt"])
    with pytest.raises(DataError, match=r"b\.txt"):
        find_inputs([str(tmp_path)])


def test_a_glob_tells_of_hidden_files_and_of_folders(tmp_path: Path) -> None:
    lay(tmp_path, "a.txt", ".b.txt", ".git/c.txt", "d/e.txt")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    assert skipped(tmp_path / "**" / "*.txt") == {"hidden": (2, (".b.txt", "c.txt"))}
    assert skipped(tmp_path / "*") == {
        "hidden": (1, (".b.txt",)),
        "folders that the glob matched": (1, ("d",)),
        "no files (broken links, pipes)": (1, ("broken",)),
    }


def test_a_file_that_is_named_is_never_skipped(tmp_path: Path) -> None:
    lay(tmp_path, ".hidden/.a", "b.tmp", "c~", "README.md", "d.jsonl", "out/e.txt")
    named = [tmp_path / name for name in (".hidden/.a", "b.tmp", "c~", "README.md", "d.jsonl")]
    found = survey_inputs([str(path) for path in named])
    assert [item.path for item in found.files] == named
    assert found.skipped == ()
    with pytest.raises(UsageError):
        find_inputs([str(tmp_path / "out" / "e.txt")], leave_out=tmp_path / "out")


@pytest.mark.parametrize(
    ("stated", "taken"),
    [
        ("text", ["README.md", "a.jsonl", "array.json", "lines.json", "notes.txt"]),
        ("jsonl", ["a.jsonl", "lines.json"]),
        ("parquet", ["rows.dat", "x.parquet"]),
        ("arrow", ["feathers"]),
    ],
)
def test_a_stated_format_chooses_by_name_and_by_first_bytes(
    tmp_path: Path, stated: str, taken: list[str]
) -> None:
    lay(tmp_path, "README.md", "notes.txt", "a.jsonl")
    for name in ("array.json", "lines.json", "feathers"):
        lay(tmp_path, name, content=(PROVEN | MARKUP)[name])
    lay(tmp_path, "rows.dat", "x.parquet", content=PROVEN["rows.txt"])
    found = survey_inputs([str(tmp_path)], input_format=stated)  # type: ignore[arg-type]
    assert [item.path.name for item in found.files] == taken
    assert {item.kind for item in found.files} == {InputKind(stated)}
    assert sum(item.count for item in found.skipped) == 8 - len(taken)


@pytest.mark.parametrize("command", ["tokenize", "train-tokenizer"])
def test_what_was_skipped_is_told_and_kept(capsys: Capsys, tmp_path: Path, command: str) -> None:
    lay(tmp_path / "in", "a.txt", "b.md", "c.jsonl", ".git/config", content=LINES)
    lay(tmp_path / "in", os.fsdecode(b".\xff\x1b[2J"))
    words = (command, tmp_path / "in", "--out", tmp_path / "out", "--val", "0")
    size = ("--vocab-size", "270") if command == "train-tokenizer" else ()
    done = call(capsys, *words, *size, "--json")
    assert done.code == 0
    told = done.json["skipped"]
    assert isinstance(told, list)
    assert [(item["reason"], item["count"]) for item in told] == [("hidden", 2), ("beside rows", 1)]
    assert "b.md" in done.err
    assert "\x1b" not in done.err
    kept = tmp_path / "out" / ("lowtide.json" if command == "tokenize" else "run.json")
    assert json.loads(kept.read_text())["skipped"] == told
    again = call(capsys, *words, *size, "--json")
    assert again.json["skipped"] == told
    asked = (*words[:2], "--out", tmp_path / "other", "--dry-run", "--json", *size)
    assert call(capsys, *asked).json["skipped"] == told


@pytest.mark.parametrize(
    "array", [b'[{"text": "one"}, {"text": "two"}]\n', b'[\n {"text": "one"}\n]']
)
def test_an_array_that_is_called_jsonl_is_named(tmp_path: Path, array: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(array)
    with pytest.raises(DataError, match="a JSON array") as caught:
        find_inputs([str(tmp_path / "a.jsonl")])
    assert "--bad-text" not in caught.value.remedy


def test_a_bad_first_line_is_no_array(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'[{"text": "one"}]\n{"text": "two"}\n')
    assert find_inputs([str(tmp_path / "a.jsonl")])
