"""An export holds the same tokens and documents in another form, or nothing."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import UsageError, VerificationError
from lowtide.settings import Format, Placement
from lowtide.shards.export import export_dataset
from lowtide.shards.layout import FORMATS, ShardLayout
from lowtide.shards.read import Dataset, open_dataset
from lowtide.shards.verify import verify_dataset
from tests.commands import lowtide
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
        tool_version="0.1.0",
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
            export(dataset, to, out, eot=eot, checkpoint_tokens=60)

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
        with pytest.raises(UsageError, match="something else"):
            export(dataset, "nanogpt", out)
        assert folder_bytes(out) == before


def test_another_unfinished_export_is_refused(tmp_path: Path) -> None:
    dataset = source(tmp_path / "in", "npy")
    assert dies(lambda: export(dataset, "llmc", tmp_path / "out"), 20)
    with pytest.raises(UsageError, match="another unfinished export"):
        export(dataset, "nanogpt", tmp_path / "out")
    export(dataset, "llmc", tmp_path / "out")


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
    seen: list[tuple[int, int]] = []
    dataset = source(tmp_path / "in", "npy")
    export(dataset, "npy", tmp_path / "out", progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (277, 277)


def test_a_finished_export_stands_and_another_is_refused(tmp_path: Path) -> None:
    source(tmp_path / "in", "npy")
    out = tmp_path / "out"
    asked = ("export", tmp_path / "in", "--to", "npy", "--out", out)
    first = lowtide(*asked, "--json").json
    assert first["already_done"] is False
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}
    again = lowtide(*asked, "--json").json
    assert again == {**first, "already_done": True}
    told = lowtide(*asked)
    assert told.code == 0
    assert "time         none:" in told.out
    assert lowtide("export", tmp_path / "in", "--to", "nanogpt", "--out", out).code == 2
    after = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir()}
    assert after == before
