"""Facts agree with the stream, for our folders and for a peer's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.settings import Format
from lowtide.shards.describe import describe_dataset, sample_documents
from lowtide.shards.layout import ShardLayout, TokenArray
from lowtide.shards.read import open_dataset
from tests.shards.streams import NARROW, fresh_folder, make_dataset, make_stream, tokenizer_record
from tests.shards.test_read import strip


def spell(ids: TokenArray) -> str:
    return " ".join(map(str, ids.tolist()))


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=20), peer=st.booleans())
def test_the_longest_documents_are_those_of_a_plain_sort(lengths: list[int], peer: bool) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=NARROW, shard_tokens=40)
    with fresh_folder() as folder:
        make_dataset(folder, layout, train=make_stream(lengths, NARROW))
        if peer:
            strip(folder)
        facts = describe_dataset(
            open_dataset(folder, tokenizer=tokenizer_record(NARROW)), longest=3
        )
    train = facts.splits[0]
    order = sorted(range(len(lengths)), key=lambda number: (-lengths[number], number))[:3]
    assert [one.number for one in train.longest_documents] == order
    assert [one.tokens for one in train.longest_documents] == [lengths[k] for k in order]
    assert [one.start for one in train.longest_documents] == [sum(lengths[:k]) for k in order]
    assert train.shortest_document_tokens == min(lengths)
    assert (train.documents, train.tokens) == (len(lengths), sum(lengths))
    assert train.tokens_per_document == pytest.approx(sum(lengths) / len(lengths))


def test_counts_sizes_and_bytes_per_token(tmp_path: Path) -> None:
    layout = ShardLayout(format="llmc", vocabulary_size=NARROW, shard_tokens=40)
    make_dataset(
        tmp_path, layout, train=make_stream([60, 30], NARROW), val=make_stream([10], NARROW)
    )
    facts = describe_dataset(open_dataset(tmp_path))
    assert (facts.format, facts.token_bytes, facts.eot) == ("llmc", 2, "end")
    assert (facts.tokens, facts.documents, facts.inputs) == (100, 3, 1)
    assert facts.bytes_per_token == 4
    assert [split.name for split in facts.splits] == ["train", "val"]
    assert facts.splits[0].files == 3
    assert facts.splits[0].stored_bytes == 3 * 1024 + 180


@pytest.mark.parametrize("form", ["npy", "nanogpt", "llmc", "megatron"])
def test_samples_are_the_beginnings_of_documents(form: Format, tmp_path: Path) -> None:
    layout = ShardLayout(format=form, vocabulary_size=NARROW, shard_tokens=40)
    stream = make_stream([5, 70, 6, 9], NARROW)
    make_dataset(tmp_path, layout, train=stream)
    samples = sample_documents(open_dataset(tmp_path), spell, count=2, longest_tokens=8)
    assert [sample.document.number for sample in samples] == [0, 2]
    assert samples[0].text == spell(stream.ids[:5])
    assert samples[1].text == spell(stream.ids[75:81])
    longer = sample_documents(open_dataset(tmp_path), spell, count=9, longest_tokens=8)
    assert [sample.shown_tokens for sample in longer] == [5, 8, 6, 8]


def test_a_peers_files_without_a_tokenizer_say_what_they_can(tmp_path: Path) -> None:
    layout = ShardLayout(format="nanogpt", vocabulary_size=NARROW)
    make_dataset(tmp_path, layout, train=make_stream([5, 7], NARROW))
    strip(tmp_path)
    facts = describe_dataset(open_dataset(tmp_path))
    assert (facts.tokens, facts.documents, facts.bytes_per_token) == (12, None, None)
    assert facts.splits[0].longest_documents == ()
    assert sample_documents(open_dataset(tmp_path), spell) == []


def test_an_empty_dataset_can_be_described(tmp_path: Path) -> None:
    layout = ShardLayout(format="npy", vocabulary_size=NARROW)
    make_dataset(tmp_path, layout, train=make_stream([], NARROW))
    facts = describe_dataset(open_dataset(tmp_path))
    assert (facts.tokens, facts.documents, facts.bytes_per_token) == (0, 0, None)
    assert sample_documents(open_dataset(tmp_path), spell) == []
