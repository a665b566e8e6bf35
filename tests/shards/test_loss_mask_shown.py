"""Facts, samples and exports know the loss mask of examples."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import UsageError
from lowtide.settings import Format
from lowtide.shards.describe import describe_dataset, sample_documents
from lowtide.shards.layout import FORMATS, WORK_FOLDER, TokenArray
from lowtide.shards.manifest import read_manifest, write_manifest
from lowtide.shards.read import open_dataset
from lowtide.shards.verify import verify_dataset
from lowtide.stages.export import export_dataset
from tests.shards.streams import (
    NARROW,
    Stream,
    folder_bytes,
    make_dataset,
    make_stream,
    manifest_of,
    write_split,
)
from tests.shards.test_loss_mask import NPY, examples
from tests.shards.test_write import dies


def spell(ids: TokenArray) -> str:
    return "".join(f"<{number}>" for number in ids.tolist())


def test_facts_and_samples_tell_what_is_learnt(tmp_path: Path) -> None:
    stream = examples(tmp_path)
    dataset = open_dataset(tmp_path)
    facts = describe_dataset(dataset)
    assert facts.examples == read_manifest(tmp_path).examples
    assert facts.splits[0].learnt_tokens == np.count_nonzero(stream.learnt)
    assert facts.splits[0].learnt_share == pytest.approx(np.mean(stream.learnt))
    sample = sample_documents(dataset, spell, count=1)[0]
    assert sample.learnt is not None
    assert sample.learnt_text is not None
    flags = np.zeros(30, dtype=bool)
    for start, stop in sample.learnt:
        assert not flags[max(0, start - 1)]  # stretches do not touch
        flags[start:stop] = True
    assert np.array_equal(flags, stream.learnt[:30])  # type: ignore[index]
    shown = [sample.text[start:stop] for start, stop in sample.learnt_text]
    assert shown == [spell(stream.ids[start:stop]) for start, stop in sample.learnt]


def test_a_border_inside_a_character_moves_before_it(tmp_path: Path) -> None:
    """Half a character is not text: ids here are bytes, and the second half alone is learnt."""
    text = "aé b".encode()
    flags = np.array([False, False, True, True, False])
    ids = np.frombuffer(text, dtype=np.uint8).astype(np.uint32)
    make_dataset(tmp_path, NPY, train=Stream(ids, np.array([len(ids)]), flags))
    sample = sample_documents(
        open_dataset(tmp_path), lambda ids: bytes(ids.tolist()).decode(errors="replace")
    )[0]
    assert (sample.text, sample.learnt, sample.learnt_text) == ("aé b", ((2, 4),), ((1, 3),))


@pytest.mark.parametrize("to", FORMATS)
def test_bits_go_along_into_every_format(to: Format, tmp_path: Path) -> None:
    stream = examples(tmp_path / "in")
    manifest = export_dataset(
        open_dataset(tmp_path / "in"), to, tmp_path / "out", shard_tokens=64
    ).manifest
    before = read_manifest(tmp_path / "in")
    assert manifest.eot == "none"
    assert manifest.examples == before.examples
    for name, split in manifest.splits.items():
        assert split.learnt == before.splits[name].learnt
    found = open_dataset(tmp_path / "out").splits["train"]
    assert found.loss_mask
    assert np.array_equal(found.read(0, 243), stream.ids)
    assert np.array_equal(found.loss_mask.read(0, 243), stream.learnt)
    assert verify_dataset(tmp_path / "out").sound


def test_an_export_goes_on_with_its_bits_wherever_it_was_killed(tmp_path: Path) -> None:
    examples(tmp_path / "in")
    dataset = open_dataset(tmp_path / "in")
    export_dataset(dataset, "llmc", tmp_path / "once")
    for number in range(20, 80, 3):
        out = tmp_path / str(number)
        assert dies(
            lambda out=out: export_dataset(dataset, "llmc", out, checkpoint_seconds=0), number
        )
        export_dataset(dataset, "llmc", out)
        assert folder_bytes(out) == folder_bytes(tmp_path / "once")


def test_end_of_text_of_examples_is_not_moved_by_an_export(tmp_path: Path) -> None:
    """Every bit would stand beside the wrong token."""
    stream = make_stream([30, 70], NARROW)
    flags = np.ones(100, dtype=bool)
    records = {
        "train": write_split(
            tmp_path / "in", NPY, "train", dataclasses.replace(stream, learnt=flags)
        )
    }
    write_manifest(tmp_path / "in", manifest_of(NPY, records, eot="end"))  # type: ignore[arg-type]
    (tmp_path / "in" / WORK_FOLDER).rmdir()
    dataset = open_dataset(tmp_path / "in")
    with pytest.raises(UsageError, match="loss mask") as refused:
        export_dataset(dataset, "llmc", tmp_path / "out", eot="start")
    assert "leave `--eot` out" in refused.value.remedy
    assert not (tmp_path / "out").exists()
    made = export_dataset(dataset, "llmc", tmp_path / "out").manifest
    assert made.eot == "end"
