"""A record is data from anywhere: no name in one leads out of its folder, to be read, written or removed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

import lowtide
from lowtide.errors import DataError, LowtideError, StoppedError, UsageError, VerificationError
from lowtide.model.tensor_files import weight_files
from lowtide.shards.loss_mask import LossMaskMark
from lowtide.shards.manifest import DocumentIndexRecord, LossMaskRecord, ShardRecord
from lowtide.shards.read import open_dataset
from lowtide.stages.export import export_dataset
from lowtide.stages.inbox.ledger import LEDGER_NAME, Entry, Ledger
from lowtide.stages.tokenizer_files import OutputFile
from lowtide.storage.sealed_json import read_sealed, write_sealed
from lowtide.tokenizer.word_runs import RunRecord
from tests.shards.test_write import dies

OUTSIDE = ["../thesis", "/thesis", "a/../../thesis", "..", ".", "", "a/..", "../", "a\0b"]
EMPTY = xxhash.xxh3_128_hexdigest(b"")
NAMED: dict[str, tuple[type, Callable[[str], object]]] = {
    "shard": (ShardRecord, lambda name: {"name": name, "tokens": 1, "digest": EMPTY}),
    "index": (DocumentIndexRecord, lambda name: {"name": name, "documents": 1, "digest": EMPTY}),
    "learnt": (LossMaskRecord, lambda name: {"name": name, "tokens": 1, "digest": EMPTY}),
    "mark": (
        LossMaskMark,
        lambda name: {"name": name, "learnt_tokens": 1, "digest": EMPTY, "waiting": 0},
    ),
    "words": (RunRecord, lambda name: {"name": name, "size_bytes": 1, "digest": ""}),
    "tokenizer": (OutputFile, lambda name: {"name": name, "size_bytes": 1, "digest": ""}),
    "inbox": (
        Entry,
        lambda name: {
            "number": 1,
            "name": name,
            "size_bytes": 1,
            "modified_ns": 1,
            "fingerprint": "",
        },
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("record", NAMED)
def test_no_record_is_read_that_names_a_file_outside(record: str, name: str) -> None:
    kind, payload = NAMED[record]
    msgspec.convert(payload("train_000000.npy"), kind)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(payload(name), kind)


@pytest.mark.parametrize("name", ["...", "..a", "a..b", ".hidden", "a b", "ü", "\udcff"])
@pytest.mark.parametrize("record", NAMED)
def test_an_odd_name_is_still_a_name(record: str, name: str) -> None:
    kind, payload = NAMED[record]
    msgspec.convert(payload(name), kind)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("some words to learn\n" * 60_000)
    return path


@pytest.fixture
def stopped(tmp_path: Path, text: Path) -> Path:
    """The folder of a `tokenize` that was stopped on its way."""
    with pytest.raises(StoppedError):
        lowtide.tokenize([text], tmp_path / "out", should_stop=lambda: "terminated")
    assert (tmp_path / "out" / ".lowtide" / "progress.json").exists()
    return tmp_path / "out"


def forge(path: Path, change: Callable[[Any], None]) -> None:
    """As an attacker would: the seal is not a signature."""
    record = read_sealed(path)
    change(record)
    write_sealed(path, record)


@pytest.mark.parametrize("digest", ["a\ud800", "\udcff", "x" * 32, EMPTY[1:], EMPTY + "\n", ""])
def test_a_digest_that_is_not_hexadecimal_is_refused(
    tmp_path: Path, text: Path, digest: str
) -> None:
    lowtide.tokenize([text], tmp_path / "in", lowtide.TokenizeSettings(val=0))
    forge(
        tmp_path / "in/lowtide.json",
        lambda record: record["splits"]["train"]["shards"][0].update(digest=digest),
    )
    with pytest.raises(VerificationError) as caught:
        open_dataset(tmp_path / "in")
    assert "lowtide.json" in caught.value.problem


@pytest.mark.parametrize("part", ["finished", "open", "index"])
@pytest.mark.parametrize("form", ["absolute", "relative", "beside"])
def test_a_forged_checkpoint_neither_writes_nor_removes_other_files(
    tmp_path: Path, text: Path, stopped: Path, part: str, form: str
) -> None:
    place = stopped if form == "beside" else tmp_path
    precious = [place / "thesis", place / "thesis.partial", stopped / ".lowtide/thesis.partial"]
    for path in precious:
        path.write_text("years of work")
    names = {"absolute": str(tmp_path / "thesis"), "relative": "../thesis", "beside": "thesis"}
    shard = {"name": names[form], "tokens": 0, "digest": EMPTY}
    index = {"name": names[form], "documents": 0, "digest": EMPTY}

    def name_it(record: Any) -> None:
        record["train"][part] = {"finished": [shard], "open": shard, "index": index}[part]

    forge(stopped / ".lowtide" / "progress.json", name_it)
    with pytest.raises(VerificationError):
        lowtide.tokenize([text], stopped)
    lowtide.tokenize([text], stopped, restart=True)
    assert [path.read_text() for path in precious[:2]] == ["years of work"] * 2


@pytest.mark.parametrize(
    ("part", "name", "number"),
    [("cursor", "file", 7), ("cursor", "file", -1), ("cursor", "position", -1), ("counts", "tokens", -5)],
)  # fmt: skip
def test_a_checkpoint_that_no_run_can_have_stored_is_refused(
    text: Path, stopped: Path, part: str, name: str, number: int
) -> None:
    def change(record: Any) -> None:
        record[part][name] = number

    forge(stopped / ".lowtide" / "progress.json", change)
    with pytest.raises(VerificationError) as caught:
        lowtide.tokenize([text], stopped)
    assert "--restart" in caught.value.remedy
    lowtide.tokenize([text], stopped, restart=True)


def test_a_forged_export_writes_no_other_file(tmp_path: Path, text: Path) -> None:
    lowtide.tokenize([text], tmp_path / "in", lowtide.TokenizeSettings(val=0))
    out, dataset = tmp_path / "out", open_dataset(tmp_path / "in")
    assert dies(lambda: export_dataset(dataset, "llmc", out, checkpoint_seconds=0), 50)
    (tmp_path / "thesis.partial").write_text("years of work")
    shard = {"name": "../../thesis", "tokens": 0, "digest": EMPTY}
    mark = {"split": "train", "finished": [], "open": shard, "index": None, "learnt": None}
    forge(out / ".lowtide/export_progress.json", lambda record: record.update(marks=[mark]))
    with pytest.raises(VerificationError):
        export_dataset(dataset, "llmc", out)
    assert (tmp_path / "thesis.partial").read_text() == "years of work"


def test_a_link_in_the_work_folder_is_not_written_through(
    tmp_path: Path, text: Path, stopped: Path
) -> None:
    partial = next((stopped / ".lowtide").glob("train*.partial"))
    copy = partial.rename(tmp_path / "copy")
    partial.symlink_to(copy)
    before = copy.read_bytes()
    for restart in (False, True):
        with pytest.raises(UsageError):
            lowtide.tokenize([text], stopped, restart=restart)
    assert copy.read_bytes() == before


def test_a_link_in_the_place_of_the_log_is_not_written_through(
    tmp_path: Path, text: Path, stopped: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("my last line")
    (stopped / "log.jsonl").unlink()
    (stopped / "log.jsonl").symlink_to(other)
    with pytest.raises(UsageError):
        lowtide.tokenize([text], stopped)
    assert other.read_text() == "my last line"


@pytest.mark.parametrize("begun", ["finished", "stopped"])
def test_a_link_in_the_place_of_a_sizes_folder_is_not_written_through(
    tmp_path: Path, text: Path, begun: str
) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    settings = lowtide.TokenizerSettings(vocab_size=(260, 270))
    if begun == "finished":
        lowtide.train_tokenizer([text], out, settings)
        (out / "270").rename(elsewhere)
    else:
        (out / ".lowtide").mkdir(parents=True)
        elsewhere.mkdir()
    (out / "270").symlink_to(elsewhere)
    (elsewhere / "tokenizer.json").write_text("years of work")
    before = bytes_below(out), bytes_below(elsewhere)
    with pytest.raises(UsageError) as refused:
        lowtide.train_tokenizer([text], out, settings, restart=begun == "finished")
    assert "270" in refused.value.problem
    assert (bytes_below(out), bytes_below(elsewhere)) == before
    (out / "270").unlink()
    lowtide.train_tokenizer([text], out, settings, restart=begun == "finished")
    assert (out / "270" / "tokenizer.json").is_file()


def bytes_below(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".lowtide" not in path.parts)
    return {path: path.read_bytes() for path in files}


def test_a_link_in_the_place_of_the_ledger_is_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("my last line")
    (tmp_path / LEDGER_NAME).symlink_to(other)
    with pytest.raises(VerificationError):
        Ledger(tmp_path)
    assert other.read_text() == "my last line"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_place_of_a_record_keeps_nobody(text: Path, stopped: Path) -> None:
    record = stopped / ".lowtide" / "progress.json"
    record.unlink()
    os.mkfifo(record)
    with pytest.raises(VerificationError):
        lowtide.tokenize([text], stopped)


def test_an_index_of_weights_names_files_of_its_folder_alone(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert weight_files(tmp_path) == [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for name in ("../one.safetensors", "/one.safetensors", 3):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(DataError):
            weight_files(tmp_path)


def test_forged_words_are_refused_and_a_restart_counts_again(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(StoppedError):
        lowtide.train_tokenizer(
            [text],
            out,
            lowtide.TokenizerSettings(vocab_size=(300,)),
            should_stop=lambda: "terminated",
        )
    words = {"name": "../../thesis.words", "size_bytes": 0, "digest": EMPTY}
    (tmp_path / "thesis.words").write_bytes(b"")
    forge(out / ".lowtide" / "counting.json", lambda record: record.update(runs=[words]))
    with pytest.raises(LowtideError):
        lowtide.train_tokenizer([text], out, lowtide.TokenizerSettings(vocab_size=(300,)))
    lowtide.train_tokenizer([text], out, lowtide.TokenizerSettings(vocab_size=(300,)), restart=True)
    assert (tmp_path / "thesis.words").exists()
