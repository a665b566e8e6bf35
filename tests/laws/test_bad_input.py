"""Bad input, end to end through the command: a named error whose remedy works, or a counted policy.

After every error nothing half-written stands under a final name.
"""

from __future__ import annotations

import codecs
import ctypes
import gzip
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import lowtide
from lowtide.source.separators import MARKER
from lowtide.units import MIB
from tests.boxes import run_in_box
from tests.commands import (
    LOWTIDE,
    Outcome,
    assert_nothing_half_written,
    bytes_of,
    call,
    lowtide_process,
    manifest_of,
)

Capsys = pytest.CaptureFixture[str]
ROWS = [f"row {number} of the tide table, with some words" for number in range(50)]


class Job:
    """`lowtide tokenize INPUT... --out OUT`, run again with other flags until it works."""

    def __init__(self, capsys: Capsys, out: Path, *inputs: Path) -> None:
        self._capsys = capsys
        self.out = out
        self._command = ("tokenize", *inputs, "--out", out, "--val", "0", "--workers", "1")

    def run(self, *flags: str) -> Outcome:
        return call(self._capsys, *self._command, *flags)

    def fails(self, *flags: str, code: int, naming: str) -> Outcome:
        """The run ends with the code and an error that names what was wrong; nothing half-written stands."""
        failed = self.run(*flags)
        assert failed.code == code, failed
        assert naming in failed.problem
        assert failed.hint
        assert failed.out == ""
        assert_nothing_half_written(self.out)
        return failed

    def works(self, *flags: str) -> dict[str, object]:
        """The run ends well, the dataset is proven, and its manifest comes back."""
        done = self.run(*flags)
        assert done.code == 0, done.err
        proven = call(self._capsys, "verify", self.out)
        assert proven.code == 0, proven.out
        return manifest_of(self.out)


def documents_of(folder: Path) -> list[str]:
    """Every document as text, from the tokens alone."""
    dataset = lowtide.open_dataset(folder)
    reference = lowtide.stages.examine.make_reference(
        lowtide.stages.examine.load_vocabulary("gpt2"), "text"
    )
    split = dataset.splits["train"]
    spans = (split.document(number) for number in range(split.document_count or 0))
    return [reference.decode(split.read(a, b - 1).tolist()).decode() for a, b in spans]


def write_file(path: Path, rows: list[str]) -> Path:
    """The rows in the format that the name asks for."""
    lines = "".join(json.dumps({"text": row}) + "\n" for row in rows).encode()
    plain = "\n".join(rows).encode()
    table = pa.table({"text": rows})
    kind = path.name.partition(".")[2]
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind in ("stream.arrow", "file.arrow"):
        make = pa.ipc.new_stream if kind == "stream.arrow" else pa.ipc.new_file
        with make(path, table.schema) as writer:
            writer.write_table(table)
    else:
        data = lines if kind.startswith("jsonl") else plain
        if kind.endswith("gz"):
            data = gzip.compress(data)
        if kind.endswith("zst"):
            data = zstandard.compress(data)
        path.write_bytes(data)
    return path


# Nothing there


def test_an_empty_file_among_others_is_counted(capsys: Capsys, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").write_text("some words")
    manifest = Job(capsys, tmp_path / "out", tmp_path / "a.txt", tmp_path / "b.txt").works()
    assert manifest["empty_documents"] == 1
    assert manifest["documents"] == 1


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.jsonl.zst", "a.parquet"])
def test_input_without_any_text_is_an_error(capsys: Capsys, tmp_path: Path, name: str) -> None:
    rows = [] if name.startswith("a.txt") else ["", ""]
    job = Job(capsys, tmp_path / "out", write_file(tmp_path / name, rows))
    job.fails(code=1, naming="no text at all")
    write_file(tmp_path / name, ROWS)
    assert job.works()["documents"] in (1, 50)


@pytest.mark.parametrize("name", ["a.parquet", "a.txt.zst"])
def test_a_file_of_no_bytes_is_none_of_its_kind(capsys: Capsys, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    job = Job(capsys, tmp_path / "out", tmp_path / name)
    job.fails(code=1, naming=name if name == "a.parquet" else "no text at all")


# Cut off, and lying


@pytest.mark.parametrize(
    "name",
    [
        "a.txt.gz",
        "a.txt.zst",
        "a.jsonl.gz",
        "a.jsonl.zst",
        "a.parquet",
        "a.stream.arrow",
        "a.file.arrow",
    ],
)
def test_a_file_that_was_cut_off_is_named_and_works_once_it_is_whole(
    capsys: Capsys, tmp_path: Path, name: str
) -> None:
    path = write_file(tmp_path / name, ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    job = Job(capsys, tmp_path / "out", path)
    job.fails(code=1, naming=name)
    job.fails("--bad-text", "skip", code=1, naming=name)  # half a file is not a bad row
    path.write_bytes(whole)
    assert job.works()["documents"] in (1, 50)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.parquet", "a.arrow"])
def test_a_file_of_another_kind_is_named(capsys: Capsys, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("these are just words, " * 50)
    Job(capsys, tmp_path / "out", tmp_path / name).fails(code=1, naming=name)


def test_a_footer_that_lies_about_its_size_is_refused(capsys: Capsys, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.parquet", ROWS)
    whole = path.read_bytes()
    job = Job(capsys, tmp_path / "out", path)
    for claimed in (0, 9, len(whole), 2**31 - 1, 2**32 - 1):
        path.write_bytes(whole[:-8] + struct.pack("<I", claimed) + b"PAR1")
        job.fails(code=1, naming="a.parquet")
    path.write_bytes(whole)
    assert job.works()["documents"] == 50


def test_a_footer_that_lies_about_its_rows_is_refused(capsys: Capsys, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.parquet", ROWS)
    whole = path.read_bytes()
    footer_start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    fifty = bytes([0x16, 2 * len(ROWS)])  # Thrift: the next field is a long, 50 in zigzag
    places = [
        at for at in range(footer_start, len(whole) - 8) if whole[at : at + len(fifty)] == fifty
    ]
    assert len(places) >= 3  # the file's rows, the column's values, the row group's rows
    job = Job(capsys, tmp_path / "out", path)
    for at in places:
        for lie in (0x02, 2 * len(ROWS) + 2):
            path.write_bytes(whole[: at + 1] + bytes([lie]) + whole[at + 2 :])
            said = job.run("--restart")
            if said.code:
                assert said.code == 1
                assert "a.parquet" in said.problem
                assert_nothing_half_written(job.out)
            else:
                assert documents_of(job.out) == ROWS  # a figure that nobody needs


@pytest.mark.slow
def test_a_flipped_byte_in_a_footer_never_ends_in_a_traceback(
    capsys: Capsys, tmp_path: Path
) -> None:
    path = write_file(tmp_path / "a.parquet", ROWS)
    whole = path.read_bytes()
    job = Job(capsys, tmp_path / "out", path)
    footer_bytes = int.from_bytes(whole[-8:-4], "little")
    for at in range(len(whole) - 8 - footer_bytes, len(whole) - 8, footer_bytes // 24):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        said = job.run("--restart")
        assert said.code in (0, 1, 2), said.err
        assert said.code == 0 or said.hint


# Text that is none


def damaged(tmp_path: Path, kind: str) -> Path:
    """Three documents, the second of which is not UTF-8."""
    texts = [b"good words", b"bad \xff\xfe words", b"more good words"]
    path = tmp_path / f"a.{kind}"
    if kind == "txt":
        path.write_bytes(b"\n".join(texts))
    elif kind == "jsonl":
        path.write_bytes(b"".join(b'{"text": "' + text + b'"}\n' for text in texts))
    elif kind == "parquet":
        pq.write_table(pa.table({"text": pa.array(texts, pa.binary())}), path)
    else:
        table = pa.table({"text": pa.array(texts, pa.binary())})
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet", "arrow"])
def test_invalid_utf8_is_refused_or_replaced_or_skipped_and_counted(
    capsys: Capsys, tmp_path: Path, kind: str
) -> None:
    path = damaged(tmp_path, kind)
    job = Job(capsys, tmp_path / "out", path)
    refused = job.fails("--separator", "line", code=1, naming=path.name)
    assert "--bad-text skip" in refused.hint
    skipped = job.works("--separator", "line", "--bad-text", "skip")
    assert skipped["bad_rows"] == 1
    assert documents_of(job.out) == ["good words", "more good words"]
    replaced = job.works("--separator", "line", "--bad-text", "replace", "--restart")
    assert replaced["bad_rows"] in (1, 2)  # documents in rows, places in text
    assert documents_of(job.out)[1] == "bad \ufffd\ufffd words"
    for manifest in (skipped, replaced):
        listed = manifest["first_bad_rows"]
        assert isinstance(listed, list)
        assert len(listed) == manifest["bad_rows"]
        assert listed[0]["file"] == str(path)
        assert "UTF-8" in listed[0]["reason"]


def test_utf16_is_recognised_and_works_once_converted(capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("some words".encode("utf-16"))
    job = Job(capsys, tmp_path / "out", path)
    assert "UTF-8" in job.fails(code=1, naming="a.txt").hint
    path.write_bytes(path.read_bytes().decode("utf-16").encode())
    assert job.works()["documents"] == 1


@pytest.mark.parametrize("bad_text", ["skip", "replace"])
def test_null_rows_and_rows_of_another_type_are_refused_or_counted(
    capsys: Capsys, tmp_path: Path, bad_text: str
) -> None:
    lines = ['{"text": "good"}', '{"text": null}', '{"text": 7}', '{"text": {"a": 1}}', "[1]", "no"]
    lines += ['{"body": "no text here"}', '{"text": "also good"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    pq.write_table(pa.table({"text": ["good", None, "also good"]}), tmp_path / "a.parquet")
    for name, count in (("a.jsonl", 6), ("a.parquet", 1)):
        job = Job(capsys, tmp_path / f"out-{name}", tmp_path / name)
        refused = job.fails(code=1, naming=name)
        assert refused.advice == ["--bad-text", "skip"]
        manifest = job.works("--bad-text", bad_text)
        assert manifest["bad_rows"] == count
        assert documents_of(job.out) == ["good", "also good"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "stream.arrow"])
def test_a_missing_column_is_an_error_that_lists_the_columns(
    capsys: Capsys, tmp_path: Path, kind: str
) -> None:
    path = write_file(tmp_path / f"a.{kind}", ROWS)
    job = Job(capsys, tmp_path / "out", path)
    refused = job.fails("--column", "body", code=2, naming="text")
    assert "--column" in refused.hint
    assert job.works("--column", "text")["documents"] == 50


def test_a_column_of_another_type_is_an_error_that_lists_those_that_hold_text(
    capsys: Capsys, tmp_path: Path
) -> None:
    table = pa.table({"text": [1, 2], "body": ["one", "two"], "title": ["a", "b"]})
    pq.write_table(table, tmp_path / "a.parquet")
    job = Job(capsys, tmp_path / "out", tmp_path / "a.parquet")
    refused = job.fails(code=2, naming="int64")
    assert "body, title" in refused.hint
    assert job.works("--column", "body")["documents"] == 2


@pytest.mark.parametrize("depth", [900, 200_000])
def test_deep_json_is_read_or_counted(capsys: Capsys, tmp_path: Path, depth: int) -> None:
    deep = '{"a": ' + "[" * depth + "]" * depth + ', "text": "deep"}'
    (tmp_path / "a.jsonl").write_text('{"text": "flat"}\n' + deep + '\n{"text": "flat"}\n')
    job = Job(capsys, tmp_path / "out", tmp_path / "a.jsonl")
    first = job.run()
    assert first.code in (0, 1)
    if first.code:
        assert "line 2" in first.problem
        assert_nothing_half_written(job.out)
        assert job.works(*first.advice)["bad_rows"] == 1


# Files that are not to be had


def test_an_input_named_twice_is_read_once(capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("words")
    link = tmp_path / "b.txt"
    link.symlink_to(path)
    for number, other in enumerate((path, link, tmp_path)):
        assert Job(capsys, tmp_path / f"out{number}", path, other).works()["documents"] == 1


@pytest.mark.parametrize("name", ["dangling.txt", "nowhere.txt", "*.nothing", "empty"])
def test_what_is_not_there_is_named(capsys: Capsys, tmp_path: Path, name: str) -> None:
    (tmp_path / "dangling.txt").symlink_to("nowhere")
    (tmp_path / "empty").mkdir()
    Job(capsys, tmp_path / "out", tmp_path / name).fails(code=2, naming=name)


def test_a_pipe_is_refused_and_standard_input_takes_it(capsys: Capsys, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused = Job(capsys, tmp_path / "out", tmp_path / "pipe").fails(code=2, naming="pipe")
    assert "lowtide tokenize -" in refused.hint


def give_up_privileges() -> None:
    """Let the rights on files hold for root too: the next program gets no right to override them."""
    if sys.platform == "linux" and os.geteuid() == 0:
        drop_from_bounding_set, override, read_search = 24, 1, 2
        for capability in (override, read_search):
            ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0)


@pytest.mark.skipif(os.name != "posix", reason="rights on files are set in another way")
def test_a_file_that_may_not_be_read_is_named_and_works_once_it_may(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("words")
    path.chmod(0)
    command = ("tokenize", path, "--out", tmp_path / "out")
    refused = lowtide_process(*command, before=give_up_privileges)
    if refused.code == 0:
        pytest.skip("every file can be read here")
    assert refused.code == 2
    assert "a.txt cannot be read: Permission denied" in refused.problem
    assert_nothing_half_written(tmp_path / "out")
    path.chmod(0o600)
    assert lowtide_process(*command, before=give_up_privileges).code == 0


def test_packed_rows_are_refused_and_work_unpacked(capsys: Capsys, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.parquet", ROWS)
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(path.read_bytes()))
    packed = Job(capsys, tmp_path / "out", tmp_path / "a.parquet.gz")
    assert "decompress" in packed.fails(code=2, naming="a.parquet.gz").hint
    assert Job(capsys, tmp_path / "out", path).works()["documents"] == 50


# Characters with a meaning of their own


def test_the_private_marker_inside_a_text_is_named(capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"words" + MARKER + b"words")
    job = Job(capsys, tmp_path / "out", path)
    job.fails(code=1, naming="lowtide-document")
    path.write_bytes(path.read_bytes().replace(MARKER, b" "))
    assert job.works()["documents"] == 1


def test_a_special_token_inside_a_text_follows_the_setting(capsys: Capsys, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one<|endoftext|>two")
    job = Job(capsys, tmp_path / "out", tmp_path / "a.txt")
    refused = job.fails("--special-in-text", "fail", code=1, naming="<|endoftext|>")
    as_text = job.works(*refused.advice)
    as_token = job.works("--special-in-text", "token", "--restart")
    assert int(str(as_text["tokens"])) > int(str(as_token["tokens"])) == 4


def test_nul_bytes_line_ends_and_byte_order_marks_are_kept_or_dropped_as_told(
    capsys: Capsys, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(codecs.BOM_UTF8 + b"one\x00two\r\nthree\rfour\r\n")
    job = Job(capsys, tmp_path / "out", path)
    job.works()
    assert documents_of(job.out) == ["one\x00two\r\nthree\rfour\r\n"]
    job.works("--separator", "line", "--restart")
    assert documents_of(job.out) == ["one\x00two", "three\rfour"]


# Milder policies, half-way


def rows_then(bad_line: bytes) -> bytes:
    """Some 3 MB of good lines, a bad one, and some more: more than one block at any budget."""
    good = b"".join(b'{"text": "line %d of the tide table"}\n' % n for n in range(60_000))
    return good + bad_line + good[:10_000].rpartition(b"\n")[0] + b"\n"


def test_a_milder_policy_goes_on_where_the_strict_one_stopped(
    capsys: Capsys, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(rows_then(b'{"text": null}\n'))
    job = Job(capsys, tmp_path / "out", path)
    refused = job.fails(code=1, naming="line 60001")
    went_on = job.run(*refused.advice)
    assert went_on.code == 0
    assert "resuming" in went_on.err
    fresh = Job(capsys, tmp_path / "fresh", path)
    fresh.works(*refused.advice)
    assert bytes_of(job.out) == bytes_of(fresh.out)


def test_more_bad_rows_than_allowed_stop_the_run_and_a_larger_limit_resumes_it(
    capsys: Capsys, tmp_path: Path
) -> None:
    rows = [json.dumps({"text": row}) if number % 5 else "{" for number, row in enumerate(ROWS)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows))
    job = Job(capsys, tmp_path / "out", path)
    job.fails("--bad-text", "skip", "--max-bad", "9", code=1, naming="left out")
    job.fails("--bad-text", "skip", "--max-bad", "9", code=1, naming="left out")
    job.fails("--bad-text", "skip", "--max-bad", "8", code=2, naming="max-bad")
    assert job.run("--bad-text", "skip", "--max-bad", "10").code == 0
    whole = Job(capsys, tmp_path / "whole", path)
    assert whole.run("--bad-text", "skip", "--max-bad", "10").code == 0
    assert bytes_of(job.out) == bytes_of(whole.out)


def test_a_text_that_was_begun_cannot_be_skipped_but_replaced(
    capsys: Capsys, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"many words before " * 200_000 + b"\xff and many after " + b"word " * 1000)
    job = Job(capsys, tmp_path / "out", path)
    job.fails(code=1, naming="at byte 3600000")
    refused = job.fails("--bad-text", "skip", code=2, naming="--bad-text was 'fail', is 'skip'")
    assert "--restart" in refused.hint
    assert "resuming" in job.run("--bad-text", "replace").err
    fresh = Job(capsys, tmp_path / "fresh", path)
    fresh.works("--bad-text", "replace")
    assert bytes_of(job.out) == bytes_of(fresh.out)


# Large values in a small budget


@pytest.mark.slow
@pytest.mark.cgroup
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_value_of_60_mb_is_handled_or_refused_before_memory_is_gone(
    tmp_path: Path, kind: str
) -> None:
    value = "words and tides " * 3_750_000
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text('{"text": "small"}\n{"text": "' + value + '"}\n')
    else:
        pq.write_table(pa.table({"text": ["small", value]}), path, row_group_size=1)
    del value
    command = [*LOWTIDE, "tokenize", str(path), "--out", str(tmp_path / "out")]
    boxed = run_in_box([*command, "--memory", "256MiB"], limit_bytes=256 * MIB, timeout=300)
    assert boxed.oom_kills == 0, boxed
    assert boxed.returncode in (0, 1), boxed
    said = Outcome(code=boxed.returncode, out=boxed.stdout, err=boxed.stderr)
    if boxed.returncode:
        assert "--memory" in said.hint
        assert_nothing_half_written(tmp_path / "out")
        more = re.search(r"by about (\d+)MiB", said.hint)
        enough = 256 + int(more[1]) if more else 1024
        followed = lowtide_process(*command[3:], "--memory", f"{enough}MiB")
        assert followed.code == 0, followed.err
    assert manifest_of(tmp_path / "out")["documents"] == 2


FROM_PYTHON = """
import sys, lowtide
lowtide.tokenize([sys.argv[1]], sys.argv[2], memory="1GiB")
"""


def test_what_arrow_reserves_and_never_touches_does_not_stop_a_run(tmp_path: Path) -> None:
    """Arrow's own allocator reserves 1 GiB when it is first used; a fence must not count that as used."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["words and tides " * 3_750_000]}), path)
    command = [sys.executable, "-c", FROM_PYTHON, str(path), str(tmp_path / "out")]
    env = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [("tokenize",), ("train-tokenizer", "--vocab-size", "300")])
@pytest.mark.parametrize(
    ("separator", "told"), [("file", True), ("blank-line", True), ("line", False)]
)
def test_what_skip_takes_away_from_text_is_said_before_the_start(
    capsys: Capsys, tmp_path: Path, command: tuple[str, ...], separator: str, told: bool
) -> None:
    (tmp_path / "a.txt").write_bytes(b"good words\nbad \xff words\n\nmore good words\n")
    (tmp_path / "b.txt").write_text("other words and more of them\n" * 9)
    words = (command[0], tmp_path / "a.txt", tmp_path / "b.txt", "--out", tmp_path / "out")
    done = call(capsys, *words, *command[1:], "--separator", separator, "--bad-text", "skip")
    assert done.code == 0
    notes = [line for line in done.err.splitlines() if line.startswith("note: ")]
    assert any("--separator line" in note for note in notes) == told
