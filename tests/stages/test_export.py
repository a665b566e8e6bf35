"""An export holds the same tokens and documents in another form, or nothing."""

from __future__ import annotations

import dataclasses
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide.dataset.find_tokens import open_dataset as open_tokens
from lowtide.errors import (
    DoesNotFitError,
    InterruptedRun,
    LowtideError,
    StoppedError,
    UsageError,
    VerificationError,
)
from lowtide.events import Advanced, Checkpointed, Event, StopReason
from lowtide.settings import Format, Placement
from lowtide.shards.layout import FORMATS, ShardLayout
from lowtide.shards.manifest import MANIFEST_NAME
from lowtide.shards.read import Dataset, open_dataset
from lowtide.shards.verify import verify_dataset
from lowtide.stages import watch_run
from lowtide.stages.export import export_dataset
from lowtide.stages.folder import EXPORT, hold_lock, make_folder
from lowtide.storage.fingerprint import fingerprint_file
from lowtide.storage.sealed_json import write_sealed
from tests.commands import lowtide as command
from tests.shards.streams import (
    NARROW,
    WIDE,
    Stream,
    folder_bytes,
    fresh_folder,
    make_dataset,
    make_stream,
    tokenizer_record,
)
from tests.shards.test_read import strip
from tests.shards.test_write import dies

LENGTHS = [30, 100, 1, 80, 39]


def source(folder: Path, form: Format, size: int = NARROW, eot: Placement = "end") -> Dataset:
    layout = ShardLayout(format=form, vocabulary_size=size, shard_tokens=70)
    train = make_stream(LENGTHS, size, eot=eot)
    val = make_stream([20, 7], size, seed=1, eot=eot)
    make_dataset(folder, layout, train=train, val=val, eot=eot)
    return open_dataset(folder)


def export(dataset: Dataset, to: Format, out: Path, **options: object) -> Dataset:
    export_dataset(
        dataset,
        to,
        out,
        shard_tokens=90,
        **options,  # type: ignore[arg-type]
    )
    assert verify_dataset(out).problems == ()
    return open_dataset(out)


def contents(dataset: Dataset) -> dict[str, tuple[list[int], list[int]]]:
    return {
        name: (
            split.read(0, split.tokens).tolist(),
            [end for ends in split.document_ends() for end in ends.tolist()],
        )
        for name, split in dataset.splits.items()
    }


@pytest.mark.parametrize(("form", "to"), list(product(FORMATS, FORMATS)))
@pytest.mark.parametrize("size", [NARROW, WIDE])
def test_every_format_becomes_every_other(
    form: Format, to: Format, size: int, tmp_path: Path
) -> None:
    """And is what the tokens would have been written as in the first place."""
    dataset = source(tmp_path / "in", form, size)
    exported = export(dataset, to, tmp_path / "out", eot="end")
    assert contents(exported) == contents(dataset)
    direct = ShardLayout(format=to, vocabulary_size=size, shard_tokens=90)
    make_dataset(
        tmp_path / "direct",
        direct,
        train=make_stream(LENGTHS, size),
        val=make_stream([20, 7], size, seed=1),
    )
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "direct")
    assert not (tmp_path / "out" / ".lowtide").exists()


@pytest.mark.parametrize(("form", "to"), list(product(FORMATS, FORMATS)))
def test_a_peers_files_become_every_format(form: Format, to: Format, tmp_path: Path) -> None:
    own = contents(source(tmp_path / "in", form))
    strip(tmp_path / "in")
    peer = open_dataset(tmp_path / "in", tokenizer=tokenizer_record(NARROW))
    exported = export(peer, to, tmp_path / "out", eot="end")
    assert contents(exported) == own
    assert exported.manifest
    assert exported.manifest.text_bytes is None
    assert len(exported.manifest.inputs) == sum(len(s.files) for s in peer.splits.values())


def test_llmc_gets_end_of_text_in_front_and_nanogpt_gets_it_behind(tmp_path: Path) -> None:
    dataset = source(tmp_path / "in", "npy")
    llmc = export(dataset, "llmc", tmp_path / "llmc")
    assert llmc.eot == "start"
    train = llmc.splits["train"]
    wanted = make_stream(LENGTHS, NARROW).ids
    assert train.read(0, train.tokens).tolist() == [NARROW - 1, *wanted[:-1].tolist()]
    for number in range(train.document_count or 0):
        start, end = train.document(number)
        assert train.read(start, end)[0] == NARROW - 1
    back = export(llmc, "nanogpt", tmp_path / "back")
    assert back.eot == "end"
    assert contents(back) == contents(dataset)
    kept = export(llmc, "npy", tmp_path / "kept")
    assert (kept.eot, contents(kept)) == ("start", contents(llmc))


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    to=st.sampled_from(FORMATS),
    eot=st.sampled_from(["start", "end"]),
)
def test_moving_end_of_text_there_and_back_changes_nothing(
    lengths: list[int], to: Format, eot: Placement
) -> None:
    with fresh_folder() as folder:
        layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=33)
        make_dataset(folder / "in", layout, train=make_stream(lengths, NARROW))
        dataset = open_dataset(folder / "in")
        moved = export(dataset, to, folder / "moved", eot=eot)
        assert contents(export(moved, "npy", folder / "back", eot="end")) == contents(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("eot", ["start", "end"])
def test_an_export_killed_anywhere_goes_on_and_ends_the_same(to: Format, eot: Placement) -> None:
    with fresh_folder() as base:
        dataset = source(base / "in", "npy")

        def work(out: Path) -> None:
            export(dataset, to, out, eot=eot, checkpoint_seconds=0)

        work(base / "whole")
        whole = folder_bytes(base / "whole")
        number, killed = 0, True
        while killed:
            number += 3
            out = base / f"out{number}"
            killed = dies(lambda: work(out), number)  # noqa: B023 - called at once
            work(out) if killed else None
            assert folder_bytes(out) == whole
        assert number > 60


def test_a_damaged_source_is_never_copied(tmp_path: Path) -> None:
    dataset = source(tmp_path / "in", "npy")
    path = tmp_path / "in" / "val_000000.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(VerificationError, match="val_000000"):
        export(dataset, "llmc", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_occupied_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    dataset = source(tmp_path / "in", "npy")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    for out in (tmp_path / "out", tmp_path / "in"):
        before = folder_bytes(out)
        for restart in (False, True):
            with pytest.raises(UsageError):
                export(dataset, "nanogpt", out, restart=restart)
            assert folder_bytes(out) == before


def test_a_file_of_the_folder_itself_is_not_exported_onto_it(tmp_path: Path) -> None:
    source(tmp_path / "in", "nanogpt")
    before = folder_bytes(tmp_path / "in")
    train = open_dataset(tmp_path / "in" / "train.bin", tokenizer=tokenizer_record(NARROW))
    with pytest.raises(UsageError):
        export(train, "npy", tmp_path / "in", restart=True)
    assert folder_bytes(tmp_path / "in") == before


@pytest.mark.parametrize("finished", [True, False])
def test_another_export_is_refused_with_the_difference_and_a_restart_replaces_it(
    tmp_path: Path, finished: bool
) -> None:
    dataset, out = source(tmp_path / "in", "npy"), tmp_path / "out"
    if finished:
        export(dataset, "llmc", out)
    else:
        stop_at(dataset, "llmc", out, tokens=100)
    before = folder_bytes(out)
    with pytest.raises(UsageError) as refused:
        export(dataset, "nanogpt", out)
    assert "--to was 'llmc', is 'nanogpt'" in refused.value.problem
    assert "--restart" in refused.value.remedy
    assert folder_bytes(out) == before
    (out / "notes.txt").write_text("mine")
    export_dataset(dataset, "nanogpt", out, restart=True)
    export_dataset(dataset, "nanogpt", tmp_path / "direct")
    assert folder_bytes(out).pop("notes.txt") == b"mine"
    assert folder_bytes(out) == folder_bytes(tmp_path / "direct") | {"notes.txt": b"mine"}


def stop_at(
    dataset: Dataset, to: Format, out: Path, tokens: int, reason: StopReason = "terminated"
) -> None:
    """Ask for a stop as soon as so many tokens are copied."""
    copied = [0]

    def hear(event: Event) -> None:
        if isinstance(event, Checkpointed):
            copied[0] = event.tokens

    stopped = InterruptedRun if reason == "interrupted" else StoppedError
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_run, "_TELL_SECONDS", 0.0)
        with pytest.raises(stopped):
            export_dataset(
                dataset,
                to,
                out,
                shard_tokens=90,
                listen=hear,
                should_stop=lambda: reason if copied[0] >= tokens else None,
                checkpoint_seconds=0,
            )


@pytest.mark.parametrize("reason", ["terminated", "interrupted"])
@pytest.mark.parametrize("tokens", [1, 100, 250])
def test_an_export_that_is_stopped_goes_on_and_ends_the_same(
    tmp_path: Path, reason: StopReason, tokens: int
) -> None:
    dataset = source(tmp_path / "in", "npy")
    heard: list[Event] = []
    stop_at(dataset, "llmc", tmp_path / "out", tokens, reason)
    export_dataset(dataset, "llmc", tmp_path / "out", shard_tokens=90, listen=heard.append)
    export_dataset(dataset, "llmc", tmp_path / "whole", shard_tokens=90)
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole")
    first = next(event for event in heard if isinstance(event, Advanced))
    assert first.tokens >= tokens
    assert verify_dataset(tmp_path / "out").problems == ()


def test_a_source_that_has_changed_is_refused_with_the_difference(tmp_path: Path) -> None:
    stop_at(source(tmp_path / "in", "npy"), "llmc", tmp_path / "out", tokens=100)
    other = make_stream(LENGTHS, NARROW, seed=5)
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=70)
    make_dataset(tmp_path / "other", layout, train=other, val=make_stream([20, 7], NARROW, seed=1))
    with pytest.raises(UsageError) as refused:
        export(open_dataset(tmp_path / "other"), "llmc", tmp_path / "out")
    assert "train_000000.npy" in refused.value.problem


def test_a_source_that_is_written_to_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_run, "_TELL_SECONDS", 0.0)
    dataset = source(tmp_path / "in", "npy")

    def overwrite(event: Event) -> None:
        if isinstance(event, Advanced) and event.tokens:
            path = tmp_path / "in" / "train_000000.npy"
            path.write_bytes(path.read_bytes()[:-2] + b"\0\0")

    with pytest.raises(VerificationError):
        export_dataset(dataset, "llmc", tmp_path / "out", listen=overwrite)
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()


def write_in_the_middle(path: Path, *, keeps_time: bool) -> None:
    """In a large file, where its fingerprint takes no sample."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(2_500_000)
        file.write(b"\1\0" * 100)
    if keeps_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("keeps_time", [False, True])
@pytest.mark.parametrize("moment", ["between", "meanwhile"])
def test_a_peers_file_that_is_written_to_where_no_sample_is_taken_is_never_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, keeps_time: bool
) -> None:
    """While it is copied, or between a stop and the next run: refused until the export is begun again."""
    monkeypatch.setattr(watch_run, "_TELL_SECONDS", 0.0)
    path, out = tmp_path / "train.bin", tmp_path / "out"
    (np.arange(9_000_000) % 50_000).astype(np.uint16).tofile(path)
    fingerprint, copied = fingerprint_file(path), [0]

    def hear(event: Event) -> None:
        if isinstance(event, Checkpointed) and event.tokens and not copied[0]:
            copied[0] = event.tokens
            if moment == "meanwhile":
                write_in_the_middle(path, keeps_time=keeps_time)

    with pytest.raises(LowtideError):
        export_dataset(
            open_tokens(path, tokenizer="gpt2"),
            "npy",
            out,
            listen=hear,
            should_stop=lambda: "terminated" if moment == "between" and copied[0] else None,
            checkpoint_seconds=0,
        )
    if moment == "between":
        write_in_the_middle(path, keeps_time=keeps_time)
    assert 0 < copied[0] < 9_000_000
    assert fingerprint_file(path) == fingerprint
    with pytest.raises(UsageError):
        export_dataset(open_tokens(path, tokenizer="gpt2"), "npy", out)
    export_dataset(open_tokens(path, tokenizer="gpt2"), "npy", out, restart=True)
    made = np.load(out / "train_000000.npy")
    assert np.array_equal(made, np.fromfile(path, dtype=np.uint16))


def test_an_export_that_an_earlier_version_began_is_begun_again(tmp_path: Path) -> None:
    """It kept job and checkpoint in one file, and had published full shards."""
    dataset, out = source(tmp_path / "in", "npy"), tmp_path / "out"
    export(dataset, "llmc", tmp_path / "whole")
    (out / ".lowtide").mkdir(parents=True)
    whole = tmp_path / "whole"
    (out / "train_000000.bin").write_bytes((whole / "train_000000.bin").read_bytes())
    (out / ".lowtide" / "train_000001.bin.partial").write_bytes(b"begun")
    layout = {"format": "llmc", "vocabulary_size": NARROW, "shard_tokens": 90}
    mark = {
        "split": "train",
        "finished": [{"name": "train_000000.bin", "tokens": 90, "digest": "0" * 32}],
    }
    job = {"layout": layout, "eot": "start", "source": []}
    write_sealed(out / ".lowtide" / "export.json", {"job": job, "marks": {"train": mark}})
    (tmp_path / "a.txt").write_text("some words")
    with pytest.raises(UsageError):
        lowtide.tokenize([tmp_path / "a.txt"], out)
    export(dataset, "llmc", out)
    assert folder_bytes(out) == folder_bytes(whole)


def test_what_a_copy_cannot_do_is_refused_with_a_remedy(tmp_path: Path) -> None:
    dataset = source(tmp_path / "in", "npy")
    with pytest.raises(UsageError, match="cannot be put at 'none'"):
        export(dataset, "npy", tmp_path / "out", eot="none")
    strip(tmp_path / "in")
    with pytest.raises(UsageError, match="which tokenizer"):
        export(open_dataset(tmp_path / "in"), "npy", tmp_path / "out")
    silent = dataclasses.replace(tokenizer_record(NARROW), end_of_text=None)
    peer = open_dataset(tmp_path / "in", tokenizer=silent)
    with pytest.raises(UsageError, match="Megatron needs to know"):
        export(peer, "megatron", tmp_path / "idx")
    bare = export(peer, "nanogpt", tmp_path / "bare")
    assert bare.splits["train"].document_count is None
    assert bare.tokens == dataset.tokens


def test_end_of_text_that_is_not_where_it_should_be_is_not_moved(tmp_path: Path) -> None:
    ids = np.arange(50, dtype=np.uint32)
    layout = ShardLayout(format="npy", vocabulary_size=NARROW)
    make_dataset(tmp_path / "in", layout, train=Stream(ids, np.array([50])))
    with pytest.raises(VerificationError, match="does not stand at the end"):
        export(open_dataset(tmp_path / "in"), "llmc", tmp_path / "out")
    kept = export(open_dataset(tmp_path / "in"), "llmc", tmp_path / "kept", eot="end")
    assert kept.splits["train"].read(0, 50).tolist() == ids.tolist()


def test_an_export_keeps_what_is_known_about_the_text(tmp_path: Path) -> None:
    dataset = source(tmp_path / "in", "npy")
    exported = export(dataset, "llmc", tmp_path / "out")
    assert dataset.manifest
    assert exported.manifest
    for field in ("inputs", "settings", "text_bytes", "tokenizer", "bad_rows"):
        assert getattr(exported.manifest, field) == getattr(dataset.manifest, field)


def test_progress_ends_at_all_tokens(tmp_path: Path) -> None:
    heard: list[Event] = []
    dataset = source(tmp_path / "in", "npy")
    export(dataset, "npy", tmp_path / "out", listen=heard.append)
    last = [event for event in heard if isinstance(event, Advanced)][-1]
    assert (last.tokens, last.done_bytes, last.total_bytes) == (277, 4 * 277, 4 * 277)


def test_a_finished_export_is_said_to_be_done_and_another_is_refused(tmp_path: Path) -> None:
    source(tmp_path / "in", "npy")
    out = tmp_path / "out"
    asked = ("export", tmp_path / "in", "--to", "npy", "--out", out)
    assert command(*asked, "--json").json["already_done"] is False
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}
    assert command(*asked, "--json").json["already_done"] is True
    told = command(*asked)
    assert told.code == 0
    assert "time         none:" in told.out
    assert command("export", tmp_path / "in", "--to", "nanogpt", "--out", out).code == 2
    after = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}
    assert {**after, "log.jsonl": None} == {**before, "log.jsonl": None}


def test_a_finished_export_says_so_and_stands(tmp_path: Path) -> None:
    dataset = source(tmp_path / "in", "npy")
    assert export_dataset(dataset, "npy", tmp_path / "out").work is not None
    before = (tmp_path / "out" / MANIFEST_NAME).stat().st_mtime_ns
    assert export_dataset(dataset, "npy", tmp_path / "out").work is None
    assert (tmp_path / "out" / MANIFEST_NAME).stat().st_mtime_ns == before
    assert not (tmp_path / "out" / ".lowtide").exists()


def test_a_finished_export_whose_files_are_gone_is_not_called_done(tmp_path: Path) -> None:
    dataset = source(tmp_path / "in", "npy")
    export(dataset, "npy", tmp_path / "out")
    whole = folder_bytes(tmp_path / "out")
    (tmp_path / "out" / "val_000000.npy").unlink()
    with pytest.raises(VerificationError) as found:
        export(dataset, "npy", tmp_path / "out")
    assert "--restart" in found.value.remedy
    export(dataset, "npy", tmp_path / "out", restart=True)
    assert folder_bytes(tmp_path / "out") == whole


def test_too_small_a_budget_is_refused_and_the_advised_one_works(tmp_path: Path) -> None:
    dataset = source(tmp_path / "in", "npy")
    with pytest.raises(DoesNotFitError) as refused:
        export(dataset, "npy", tmp_path / "out", memory="1MiB")
    assert not (tmp_path / "out").exists()
    advised = refused.value.remedy.split("`")[1].removeprefix("--memory ")
    export(dataset, "npy", tmp_path / "out", memory=advised)


def test_two_exports_into_one_folder_the_second_is_refused(tmp_path: Path) -> None:
    dataset = source(tmp_path / "in", "npy")
    make_folder(tmp_path / "out", EXPORT)
    with hold_lock(tmp_path / "out"), pytest.raises(UsageError):
        export(dataset, "npy", tmp_path / "out")
    export(dataset, "npy", tmp_path / "out")


@pytest.mark.parametrize("placement", ["end", "none"])
def test_documents_without_a_token_are_kept(tmp_path: Path, placement: Placement) -> None:
    """Also behind the last token, and after a stop between two pieces of their ends."""
    ends = np.repeat(np.array([0, 40, 100], dtype=np.int64), 40_000)
    ids = np.full(100, NARROW - 1, dtype=np.uint32)
    layout = ShardLayout(format="npy", vocabulary_size=NARROW)
    make_dataset(tmp_path / "in", layout, train=Stream(ids, ends), eot=placement)
    dataset = open_dataset(tmp_path / "in")
    exported = export(dataset, "npy", tmp_path / "out", eot=placement)
    assert contents(exported) == contents(dataset)
