"""`inspect` marks what is learnt of examples, `verify` proves it, `export` carries it along."""

from __future__ import annotations

import dataclasses
import os
import pty
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lowtide.dataset.find_tokens import tokenizer_record
from lowtide.shards.layout import ShardLayout, learnt_name
from lowtide.shards.manifest import DatasetManifest, read_manifest, write_manifest
from lowtide.shards.read import open_dataset
from lowtide.tokenizer.reference import make_reference
from lowtide.tokenizer.vocabulary import load_vocabulary
from tests.commands import LOWTIDE, call, lowtide
from tests.laws.chats import write_chats
from tests.shards.streams import Stream, make_dataset

QUESTION, ANSWER, REST = (
    "User: how high?\n\nAssistant: ",
    "two metres\nor \x1b[31mthree",
    "\n\nUser: ah",
)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """Three examples of which the answer is learnt; the second's is long."""
    reference = make_reference(load_vocabulary("gpt2"), "text")
    answers = [ANSWER, "tide and time " * 100, ANSWER]
    parts = [(part, part == answer) for answer in answers for part in (QUESTION, answer, REST)]
    ids = [reference.encode(part.encode()) for part, _ in parts]
    flags = [np.full(len(one), learnt) for one, (_, learnt) in zip(ids, parts, strict=True)]
    ends = np.cumsum([len(one) for one in ids])[2::3]
    folder = tmp_path / "examples"
    layout = ShardLayout(format="npy", vocabulary_size=50257)
    stream = Stream(np.concatenate(ids), ends, np.concatenate(flags))
    manifest = make_dataset(folder, layout, train=stream)
    write_manifest(folder, made_by_gpt2(manifest))
    return folder


def made_by_gpt2(manifest: DatasetManifest) -> DatasetManifest:
    record = tokenizer_record("gpt2")
    assert record
    return dataclasses.replace(
        manifest, tokenizer=record, settings={"tokenizer": "gpt2"}, inputs=()
    )


def test_what_is_learnt_stands_between_marks(examples: Path) -> None:
    shown = lowtide("inspect", examples)
    assert shown.code == 0
    assert "3 of kind chat, by the template chatml" in shown.out
    learnt = read_manifest(examples).splits["train"].learnt
    assert learnt
    assert f"  learnt     {learnt.tokens} tokens, " in shown.out
    assert "too long     2 of more than 64 tokens, split into pieces" in shown.out
    assert "dropped      1 with nothing to learn in them" in shown.out
    assert "  Assistant: «two metres\n  or \\x1b[31mthree»\n" in shown.out
    assert "\x1b" not in shown.out
    long = next(part for part in shown.out.split("\n\nexample ") if part.startswith("1 of train"))
    assert "«tide and time" in long
    assert "time »" in long
    assert len(long) < 500  # both ends of the answer can be seen, and its middle is left out


def test_what_is_shown_ends_before_learnt_text_would_stand_without_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [
        {"role": role, "content": f"{role}{number}"}
        for number in range(20)
        for role in ("user", "assistant")
    ]
    source = write_chats(tmp_path, [said])["jsonl"]
    call(capsys, "tokenize", source, "--out", tmp_path / "out", "--examples", "chat", "--val", "0")
    shown = call(capsys, "inspect", tmp_path / "out").out
    marked = re.findall("«assistant([0-9]+)<[|]im_end[|]>»", shown)
    assert list(map(int, marked)) == list(range(len(marked)))
    assert 10 < len(marked) < 20
    assert shown.rstrip().endswith(f"«assistant{len(marked) - 1}<|im_end|>»…")


def test_text_is_shown_without_marks(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = call(capsys, "inspect", dataset).out
    assert "«" not in shown
    assert "learnt" not in shown
    sample = call(capsys, "inspect", dataset, "--json").json["samples"][0]
    assert sample["learnt"] is None


def test_json_has_the_text_and_the_learnt_tokens(examples: Path) -> None:
    found = lowtide("inspect", examples, "--json").json
    assert found["facts"]["examples"]["kind"] == "chat"
    sample = found["samples"][0]
    [(start, stop)] = sample["learnt"]
    split = open_dataset(examples).splits["train"]
    reference = make_reference(load_vocabulary("gpt2"), "text")
    assert reference.decode(split.read(start, stop).tolist()).decode() == ANSWER
    [(begin, end)] = sample["learnt_text"]
    assert sample["text"][begin:end] == ANSWER


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_on_a_terminal_the_learnt_part_has_a_colour_besides(
    examples: Path, env: dict[str, str], coloured: bool
) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [*LOWTIDE, "inspect", str(examples)],
        stdout=terminal,
        stderr=subprocess.PIPE,
        env={**clean, "TERM": "xterm", **env},
    ) as process:
        os.close(terminal)
        shown = read_all(master).decode()
    assert process.returncode == 0
    assert "«two metres" in shown
    assert ("\x1b[32m«" in shown) == coloured
    assert ("\x1b" in shown) == coloured


def read_all(descriptor: int) -> bytes:
    found = b""
    while True:
        try:
            part = os.read(descriptor, 65_536)
        except OSError:  # Linux: the other side is closed
            part = b""
        if not part:
            os.close(descriptor)
            return found
        found += part


def test_a_flipped_learnt_bit_is_named_with_a_way_out(examples: Path) -> None:
    assert lowtide("verify", examples).code == 0
    path = examples / learnt_name("train")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    found = lowtide("verify", examples)
    assert found.code == 4
    assert f"{path.name}: its bits are not those that were written" in found.out
    assert "hint: restore the files named above from a copy" in found.err
    path.write_bytes(whole)
    assert lowtide("verify", examples).code == 0


def test_an_export_keeps_the_bits_and_end_of_text_where_they_are(
    examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("export", examples, "--to", "llmc", "--out", tmp_path / "out")
    refused = call(capsys, *command, "--eot", "start")
    assert refused.code == 2
    assert "leave `--eot` out" in refused.err
    done = call(capsys, *command, "--json")
    assert done.code == 0
    learnt = read_manifest(examples).splits["train"].learnt
    assert learnt
    assert done.json["splits"]["train"]["learnt_tokens"] == learnt.tokens
    assert (tmp_path / "out" / learnt.name).read_bytes() == (examples / learnt.name).read_bytes()
    assert call(capsys, "verify", tmp_path / "out").code == 0


@pytest.mark.parametrize(("words", "is_cut"), [(30, False), (5000, True)])
def test_a_document_that_is_shown_in_part_ends_with_dots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: int, is_cut: bool
) -> None:
    (tmp_path / "a.txt").write_text("a " * words)  # of few characters for each token
    made = call(capsys, "tokenize", tmp_path / "a.txt", "--out", tmp_path / "out", "--val", "0")
    assert made.code == 0
    shown = call(capsys, "inspect", tmp_path / "out").out
    assert ("…" in shown) == is_cut
