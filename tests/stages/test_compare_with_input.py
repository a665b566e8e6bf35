"""`verify` compares examples with their input: ids and loss masks, through template and reference."""

from __future__ import annotations

import dataclasses
import json
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import lowtide
from lowtide import Tokenizer, TokenizeSettings
from lowtide.memory.limits import LimitCandidate, MemoryLimit
from lowtide.shards.manifest import SplitRecord, read_manifest, write_manifest
from lowtide.shards.read import open_dataset
from lowtide.stages.examine import Proof
from lowtide.units import GIB, MIB
from tests.boxes import run_in_box
from tests.commands import LOWTIDE
from tests.laws.chats import write_chats
from tests.learnt import learnt
from tests.shards.streams import Stream, write_split

HOSTILE = ["high tide", "<|im_end|>\n", "«é» 中文 🌊", "<|endoftext|>", "a  b\n\n", "{{ x }}", " "]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chats of one to three rounds, some of them longer than 60 tokens."""
    path = tmp_path_factory.mktemp("rows") / "chats.jsonl"
    chosen = np.random.default_rng(7)
    with path.open("w") as file:
        for _ in range(60):
            said = [
                {"role": role, "content": " ".join(chosen.choice(HOSTILE, chosen.integers(1, 9)))}
                for _ in range(chosen.integers(1, 4))
                for role in ("user", "assistant")
            ]
            file.write(json.dumps({"messages": said}) + "\n")
    return path


def settings_of(**chosen: object) -> TokenizeSettings:
    return TokenizeSettings(examples="chat", val=0.2, context=60, **chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("learn", "too_long"),
    list(product(("assistant", "completion", "all"), ("split", "truncate", "skip"))),
)
def test_sound_examples_equal_their_input(
    learn: str, too_long: str, rows: Path, tmp_path: Path
) -> None:
    made = lowtide.tokenize([rows], tmp_path, settings_of(learn=learn, too_long=too_long)).manifest
    proof = lowtide.verify(tmp_path)
    assert (proof.verification.problems, proof.comparison) == ((), "")
    assert proof.compared_documents == made.documents
    assert made.examples
    assert made.examples.too_long_count > 0


@pytest.mark.parametrize("eot", ["end", "start"])
@pytest.mark.parametrize("template", ["chatml", "plain"])
def test_with_end_of_text_around_them_too(
    eot: str, template: str, rows: Path, tmp_path: Path
) -> None:
    lowtide.tokenize([rows], tmp_path, settings_of(eot=eot, template=template))
    proof = lowtide.verify(tmp_path)
    assert (proof.verification.problems, proof.comparison) == ((), "")
    assert proof.compared_documents > 60


@pytest.mark.parametrize("examples", ["chat", None])
def test_with_less_than_a_quarter_of_memory_free_all_is_compared(
    examples: Literal["chat"] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = [{"role": "user", "content": "high"}, {"role": "assistant", "content": "low"}]
    source = write_chats(tmp_path / "in", [chat] * 5)["jsonl"]
    if examples is None:
        source = tmp_path / "in.txt"
        source.write_text("high tide, low tide")
    lowtide.tokenize([source], tmp_path / "out", TokenizeSettings(examples=examples, val=0.0))
    free = LimitCandidate(source="this test", total_bytes=5 * GIB, whole_bytes=24 * GIB)
    limit = MemoryLimit(candidates=(free,))
    monkeypatch.setattr("lowtide.stages.compare_with_input.machine_limit", lambda: limit)
    proof = lowtide.verify(tmp_path / "out")
    assert proof.compared_documents == (1 if examples is None else 5)
    assert proof.comparison == ""


def remade(rows: Path, folder: Path, *, change: str) -> Proof:
    """A dataset that is whole by its digests, and wrong: as if lowtide itself had erred."""
    lowtide.tokenize([rows], folder / "right", settings_of())
    train = open_dataset(folder / "right").splits["train"]
    assert train.loss_mask
    ids = train.read(0, train.tokens).astype(np.uint32)
    bits = train.loss_mask.read(0, train.tokens)
    ends = np.concatenate(list(train.document_ends()))
    at = int(ends[4]) + 1  # in example 5
    if change == "id":
        ids[at] ^= 1
    else:
        bits[at] ^= True
    manifest = read_manifest(folder / "right")
    wrong = folder / "wrong"
    record = write_split(wrong, manifest.layout, "train", Stream(ids, ends, bits))
    for name in ("documents_VAL.npy", "learnt_VAL.npy", "val_000000.npy"):
        (wrong / name).write_bytes((folder / "right" / name).read_bytes())
    splits = {**manifest.splits, "train": record}
    write_manifest(wrong, dataclasses.replace(manifest, splits=splits))
    return lowtide.verify(wrong)


def test_a_bit_that_the_template_did_not_set_is_found(rows: Path, tmp_path: Path) -> None:
    problems = remade(rows, tmp_path, change="bit").verification.problems
    assert problems == (
        "learnt_TRAIN.npy: the loss mask of example 6 of train is not the template's",
    )


def test_a_token_that_the_input_does_not_give_is_found(rows: Path, tmp_path: Path) -> None:
    problems = remade(rows, tmp_path, change="id").verification.problems
    assert problems == ("example 6 of train is not the input's",)


@pytest.mark.parametrize("document", [0, 2])
def test_documents_of_text_are_counted_from_1_as_examples_are(
    tmp_path: Path, document: int
) -> None:
    (tmp_path / "a.txt").write_text("high tide\nlow tide\nno tide\n")
    settings = TokenizeSettings(separator="line", val=0)
    lowtide.tokenize([tmp_path / "a.txt"], tmp_path / "right", settings)
    train = open_dataset(tmp_path / "right").splits["train"]
    ids = train.read(0, train.tokens).astype(np.uint32)
    ids[train.document(document)[0]] ^= 1
    manifest = read_manifest(tmp_path / "right")
    ends = np.concatenate(list(train.document_ends()))
    record = write_split(tmp_path / "wrong", manifest.layout, "train", Stream(ids, ends))
    splits = {**manifest.splits, "train": record}
    write_manifest(tmp_path / "wrong", dataclasses.replace(manifest, splits=splits))
    (problem,) = lowtide.verify(tmp_path / "wrong").verification.problems
    assert problem.startswith(f"document {document + 1} of train: ")


def test_a_split_that_lost_its_examples_is_told_by_the_first_of_them(
    rows: Path, tmp_path: Path
) -> None:
    lowtide.tokenize([rows], tmp_path, settings_of())
    manifest = read_manifest(tmp_path)
    for name in ("documents_VAL.npy", "learnt_VAL.npy", "val_000000.npy"):
        (tmp_path / name).unlink()
    splits = {**manifest.splits, "val": SplitRecord()}
    write_manifest(tmp_path, dataclasses.replace(manifest, splits=splits))
    problems = lowtide.verify(tmp_path).verification.problems
    assert problems == ("example 1 of val is missing: the input has more",)


@pytest.mark.parametrize("bad_text", ["fail", "skip", "replace"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_an_example_larger_than_is_compared_accuses_nobody(
    tmp_path: Path, kind: str, bad_text: str
) -> None:
    answers = ["low", "high", "tide " * MIB, "ebb"]
    chats = [
        [{"role": "user", "content": "How?"}, {"role": "assistant", "content": answer}]
        for answer in answers
    ]
    source = write_chats(tmp_path / "in", chats)[kind]
    settings = TokenizeSettings(examples="chat", val=0.0, bad_text=bad_text)  # type: ignore[arg-type]
    made = lowtide.tokenize([source], tmp_path / "out", settings, memory="2GiB").manifest
    assert made.examples
    assert made.examples.examples == len(answers)
    proof = lowtide.verify(tmp_path / "out")
    assert proof.verification.problems == ()
    assert proof.comparison.startswith("no further than this: ")
    assert "more than" in proof.comparison


def test_a_template_that_changed_since_is_told_and_accuses_nobody(
    rows: Path, tmp_path: Path
) -> None:
    template = tmp_path / "chat.jinja"
    source = (
        "{% for message in messages %}{{ message.role }}: {% generation %}"
        "{{ message.content }}{% endgeneration %}\n{% endfor %}"
    )
    template.write_text(source)
    lowtide.tokenize([rows], tmp_path / "out", settings_of(template=str(template)))
    assert lowtide.verify(tmp_path / "out").compared_documents > 60
    template.write_text(source.replace(": ", " says "))
    proof = lowtide.verify(tmp_path / "out")
    assert proof.verification.sound
    assert proof.compared_documents == 0
    assert f"the template {template} has changed since" in proof.comparison
    template.unlink()
    assert str(template) in lowtide.verify(tmp_path / "out").comparison


@pytest.mark.slow
@pytest.mark.cgroup
@pytest.mark.parametrize("kind", ["text", "chat"])
def test_a_document_that_the_reference_has_no_room_for_accuses_nobody(
    tmp_path: Path, kind: str
) -> None:
    """A megabyte of one-letter words takes tokenizers some 240 MiB."""
    words = "a b c d " * 120_000
    if kind == "text":
        source = tmp_path / "in.txt"
        source.write_text(words)
    else:
        chat = [{"role": "user", "content": words}, {"role": "assistant", "content": "low"}]
        source = write_chats(tmp_path / "in", [chat])["jsonl"]
    Tokenizer.from_byte_pairs(learnt("gpt2")).save(tmp_path / "tokenizer")
    settings = TokenizeSettings(
        tokenizer=str(tmp_path / "tokenizer" / "tokenizer.json"),
        examples="chat" if kind == "chat" else None,
        val=0.0,
    )
    lowtide.tokenize([source], tmp_path / "out", settings)
    command = [*LOWTIDE, "verify", str(tmp_path / "out"), "--json"]
    boxed = run_in_box(command, limit_bytes=256 * MIB, timeout=300)
    if boxed.how == "sampled":
        pytest.skip("no memory cgroup is writable here: nothing is short")
    assert (boxed.returncode, boxed.oom_kills) == (0, 0), boxed
    found = json.loads(boxed.stdout)
    assert (found["sound"], found["compared_documents"]) == (True, 0)
    assert found["comparison"]
    assert lowtide.verify(tmp_path / "out").compared_documents > 0
