"""lowtide removes what it made and nothing else, and believes no file that it did not make."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import lowtide
from lowtide import TokenizeSettings
from lowtide.errors import DataError, LowtideError, UsageError, VerificationError
from lowtide.events import Advanced, Event
from lowtide.shards.manifest import ShardRecord, SplitRecord, read_manifest, write_manifest
from lowtide.stages import watch_run
from lowtide.stages.shard_run import ShardRun
from tests.corpora import make_documents, write_inputs


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("some words to learn\n" * 100)
    return path


def test_an_error_before_the_first_token_leaves_no_folder(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff\xfe words")
    with pytest.raises(DataError):
        lowtide.tokenize([bad], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_of_others_survive_a_run_and_a_restart(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    lowtide.tokenize([text], out)
    (out / "train.bin").write_bytes(b"mine")
    (out / "notes.txt").write_bytes(b"mine")
    lowtide.tokenize([text], out, TokenizeSettings(val=0), restart=True)
    assert (out / "train.bin").read_bytes() == (out / "notes.txt").read_bytes() == b"mine"


def test_a_work_folder_that_is_a_link_is_not_followed(tmp_path: Path, text: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.partial").write_text("years of work")
    out = tmp_path / "out"
    out.mkdir()
    (out / ".lowtide").symlink_to(precious)
    with pytest.raises(UsageError, match="link"):
        lowtide.tokenize([text], out)
    assert (precious / "thesis.partial").exists()


def test_a_forged_manifest_makes_a_restart_remove_nothing_else(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    lowtide.tokenize([text], out)
    (out / "thesis.txt").write_text("years of work")
    shard = ShardRecord(name="thesis.txt", tokens=1, digest="0" * 32)
    forged = dataclasses.replace(
        read_manifest(out), splits={"train": SplitRecord(shards=(shard,)), "val": SplitRecord()}
    )
    write_manifest(out, forged)
    with pytest.raises(VerificationError, match="thesis"):
        read_manifest(out)
    lowtide.tokenize([text], out, restart=True)
    assert (out / "thesis.txt").read_text() == "years of work"


def test_what_a_glob_finds_in_the_output_folder_is_no_input(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    first = lowtide.tokenize([tmp_path / "**" / "*"], out)
    again = lowtide.tokenize([tmp_path / "**" / "*"], out)
    assert again.already_done
    assert [item.name for item in first.manifest.inputs] == [str(text)]


def test_an_input_written_to_during_the_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_inputs(tmp_path / "in", make_documents(3, count=400))["txt"]
    monkeypatch.setattr(watch_run, "_TELL_SECONDS", 0.0)

    def overwrite(event: Event) -> None:
        if isinstance(event, Advanced):
            with path.open("r+b") as file:
                file.write(b"NEW")

    with pytest.raises(DataError, match="written to while it was read"):
        lowtide.tokenize([path], tmp_path / "out", listen=overwrite)
    assert not (tmp_path / "out" / "lowtide.json").exists()


def test_a_block_taken_in_halves_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = make_documents(4, count=1500, longest=20_000)
    path = write_inputs(tmp_path / "in", documents)["jsonl"]
    settings = TokenizeSettings(val=0.3, shard_tokens=100_000)
    expected = lowtide.tokenize([path], tmp_path / "whole", settings).manifest
    appended = []
    real_take = ShardRun.take

    def broken_take(run: ShardRun, encoded: object) -> bool:
        appended.append(1)
        if len(appended) == 4:
            monkeypatch.setattr(run._val, "append", _raise_memory_error)
        return real_take(run, encoded)  # type: ignore[arg-type]

    monkeypatch.setattr(ShardRun, "take", broken_take)
    with pytest.raises(LowtideError):
        lowtide.tokenize([path], tmp_path / "out", settings)
    monkeypatch.undo()
    assert lowtide.tokenize([path], tmp_path / "out", settings).manifest == expected


def _raise_memory_error(*_arguments: object) -> None:
    raise MemoryError
