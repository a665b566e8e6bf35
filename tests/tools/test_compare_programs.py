"""Every program does the same work: the tokens that lowtide makes, or a tokenizer of the same size."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import UsageError
from lowtide.guard.box import open_box
from lowtide.tokenizer.reference import make_reference
from lowtide.tokenizer.vocabulary import load_vocabulary
from lowtide.tools.compare.programs import (
    PROGRAMS,
    Program,
    Task,
    choose_programs,
    write_tokenizer,
)
from lowtide.tools.compare.run import (
    child_environment,
    read_tokens,
)
from lowtide.tools.compare.run_boxed import Boxed, BoxedJob, run_boxed
from lowtide.units import GIB

TEXTS = [
    f"Line {number} speaks of tides, 潮 and {number * 7919} boats.\n" for number in range(3000)
]
TEXT_BYTES = sum(len(text.encode()) for text in TEXTS)
BY_KEY = {program.key: program for program in PROGRAMS}


def run(program: Program, folder: Path, tokenizer: str = "gpt2") -> tuple[Boxed, Path]:
    """The program on some 150 kB in two files, in a box if there is one; and where it wrote."""
    for name in ("tokenizer", "out", "tmp"):
        (folder / name).mkdir()
    write_tokenizer(load_vocabulary(tokenizer), folder / "tokenizer")
    files = (folder / "a.jsonl", folder / "b.jsonl")
    for path, texts in zip(files, (TEXTS[:1500], TEXTS[1500:]), strict=True):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    task = Task(
        files=files,
        tokenizer=folder / "tokenizer",
        work=folder,
        limit_bytes=GIB,
    )
    job = BoxedJob(
        command=program.command(task),
        work=folder,
        text_bytes=TEXT_BYTES,
        environment=child_environment(os.environ, folder),
        limit_bytes=GIB,
        timeout_seconds=100,
    )
    with open_box(GIB) as box:
        found = run_boxed(job, box)
    assert found.ending == "finished", (folder / "stderr").read_text()
    return found, folder / "out"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """datasets makes sockets in its temporary folder, whose names may not be long."""
    with tempfile.TemporaryDirectory(prefix="lt-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many tokens lowtide makes of the text."""
    folder = tmp_path_factory.mktemp("ours")
    run(BY_KEY["lowtide"], folder)
    tokens = read_tokens(folder / "stdout")
    assert tokens is not None
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("key", ["list", "pool", "map", "nanogpt"])
def test_the_baselines_make_our_tokens_and_tell_how_far_they_are(
    key: str, ours: int, short_folder: Path
) -> None:
    found, out = run(BY_KEY[key], short_folder)
    assert found.tokens == ours
    lines = (short_folder / "progress").read_text().splitlines()
    told = sum(int(line) for line in lines if line.isdigit())
    assert 0.99 * TEXT_BYTES < told <= TEXT_BYTES
    made = {path.name: path.stat().st_size for path in out.glob("*.bin")}
    assert key == "map" or sum(made.values()) == 2 * ours


def test_the_list_writes_the_very_ids(tmp_path: Path) -> None:
    _, out = run(BY_KEY["list"], tmp_path)
    vocabulary = load_vocabulary("gpt2")
    reference = make_reference(vocabulary, "text")
    wanted = [[*reference.encode(text.encode()), vocabulary.end_of_text] for text in TEXTS]
    ids = np.fromfile(out / "train.bin", dtype=np.uint16)
    assert np.array_equal(ids, np.concatenate(wanted))


def test_a_tokenizer_json_works_too(tokenizer_json_file: Path, tmp_path: Path) -> None:
    found, _ = run(BY_KEY["list"], tmp_path, str(tokenizer_json_file))
    assert found.tokens is not None


def test_both_trainers_learn_the_same_number_of_tokens(tmp_path: Path) -> None:
    sizes = []
    for key in ("tokenizers", "lowtide-train"):
        (tmp_path / key).mkdir()
        _, out = run(BY_KEY[key], tmp_path / key)
        path = next(out.rglob("tokenizer.json"))
        sizes.append(len(json.loads(path.read_text())["model"]["vocab"]))
    assert sizes[0] == sizes[1] > 1000


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert BY_KEY["nanogpt"].missing == ["datasets"]
    assert BY_KEY["lowtide"].missing == []


def test_programs_are_chosen_by_name_in_our_order() -> None:
    assert choose_programs(None) == PROGRAMS
    assert [program.key for program in choose_programs(["lowtide", "list"])] == ["list", "lowtide"]
    for wrong in (["lisp"], []):
        with pytest.raises(UsageError):
            choose_programs(wrong)
