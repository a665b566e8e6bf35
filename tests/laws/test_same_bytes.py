"""The budget, the workers and the blocks change memory and time, never a byte of the output."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowtide
from lowtide import TokenizeSettings
from lowtide.settings import Format
from lowtide.shards.layout import FORMATS
from lowtide.stages.spend import smallest_budget
from lowtide.tokenizer.reference import make_reference
from lowtide.tokenizer.vocabulary import load_vocabulary
from tests.commands import bytes_of
from tests.corpora import SEPARATOR, make_documents, write_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("inputs")
    many = write_inputs(folder / "many", make_documents(1, count=800, longest=20_000))
    long = folder / "long.txt"
    long.write_text("".join(make_documents(2, count=300, longest=20_000)), newline="")
    return [many["txt"], many["jsonl"], many["parquet"], long]


@pytest.mark.parametrize("format", FORMATS)
def test_workers_and_budget_change_memory_and_never_output(
    tmp_path: Path, inputs: list[Path], format: Format
) -> None:
    settings = TokenizeSettings(
        separator=SEPARATOR, format=format, shard_tokens=300_000, val=0.1, eot="end"
    )
    smallest = f"{smallest_budget(load_vocabulary('gpt2'), reads_rows=True)}B"
    ways = {"one": ("1GiB", 1), "two": ("1GiB", 2), "small": (smallest, 2), "large": ("4GiB", 2)}
    made = {}
    for name, (memory, workers) in ways.items():
        lowtide.tokenize(inputs, tmp_path / name, settings, memory=memory, workers=workers)
        made[name] = bytes_of(tmp_path / name)
    assert made["one"] == made["two"] == made["small"] == made["large"]
    assert len(made["one"]) > 4


@pytest.mark.parametrize("split", ["hash", "tail"])
def test_a_held_out_share_is_held_out_whatever_the_format(
    tmp_path: Path, inputs: list[Path], split: str
) -> None:
    settings = TokenizeSettings(separator=SEPARATOR, val=0.2, split=split)  # type: ignore[arg-type]
    result = lowtide.tokenize(inputs[:2] + inputs[3:], tmp_path / "out", settings)
    share = result.manifest.splits["val"].tokens / result.manifest.tokens
    assert 0.1 < share < 0.3


def test_equal_documents_never_land_on_both_sides(tmp_path: Path) -> None:
    documents = make_documents(5, count=200, longest=300)
    path = write_inputs(tmp_path / "in", documents * 2)["jsonl"]
    lowtide.tokenize([path], tmp_path / "out", TokenizeSettings(val=0.3))
    dataset = lowtide.open_dataset(tmp_path / "out")
    sides = {}
    for name, split in dataset.splits.items():
        assert split.document_count
        sides[name] = {
            split.read(*split.document(number)).tobytes() for number in range(split.document_count)
        }
    assert not sides["train"] & sides["val"]


def test_the_tail_of_one_long_text_is_its_end(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    text = "".join(make_documents(9, count=200, longest=20_000))
    path.write_text(text, newline="")
    settings = TokenizeSettings(val=0.1, split="tail", eot="none")
    lowtide.tokenize([path], tmp_path / "out", settings)
    found = {}
    for name, split in lowtide.open_dataset(tmp_path / "out").splits.items():
        ids = split.read(0, split.tokens).tolist()
        found[name] = make_reference(load_vocabulary("gpt2"), "text").decode(ids).decode()
    assert found["train"] + found["val"] == text
    assert len(found["val"].encode()) == pytest.approx(0.1 * len(text.encode()), rel=0.05)
