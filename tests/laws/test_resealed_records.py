"""Records whose values are of other types, with a seal that fits: refused by name, never a fault of lowtide."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.model.gpt import GPT
from lowtide.shards.layout import MANIFEST_NAME
from lowtide.storage.sealed_json import read_sealed, write_sealed
from lowtide.tokenizer.byte_pair_files import TRAINED_MANIFEST_NAME
from lowtide.training.run_folder import RUN_NAME
from tests.commands import lowtide
from tests.runs import TINY, add_checkpoint, begin_run

OTHERS = (None, True, -1, 1 << 70, 1.5, "x", "\ud800", "\udcff", [], [[]], {}, {"x": 1})


TOKENIZE = (
    *("tokenize", "a.txt", "--out", "tokens", "--tokenizer", "run/tokenizer"),
    *("--separator", "blank-line", "--val", "0.1"),
)
RESUME = ("train", "tokens", "--out", "run", "--steps", "10", "--memory", "2GiB")
CALLS = {
    MANIFEST_NAME: {
        "inspect": ("inspect", "tokens"),
        "verify": ("verify", "tokens"),
        "plan": ("plan", "tokens"),
        "train": RESUME,
        "export": ("export", "tokens", "--to", "nanogpt", "--out", "new"),
        "tokenize": TOKENIZE,
    },
    TRAINED_MANIFEST_NAME: {
        "train-tokenizer": (
            "train-tokenizer",
            "a.txt",
            "--out",
            "vocabulary",
            "--vocab-size",
            "300",
        ),
    },
    RUN_NAME: {
        "sample": ("sample", "run", "--prompt", "a", "--count", "1"),
        "export": ("export", "run", "--to", "huggingface", "--out", "new"),
        "train": RESUME,
        "init": ("train", "tokens", "--init", "run", "--out", "new", "--memory", "1MiB"),
    },
}
"""What reads each record."""
NOT_DONE = {RESUME: 2, CALLS[RUN_NAME]["init"]: 3}
"""Exit codes of calls that stop behind their records: the run has other data, or the budget is too small."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset, a vocabulary and a run."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a thousand records wait for no disk
    text = "\n\n".join(f"document {n}: some words" for n in range(400))
    (tmp_path / "a.txt").write_text(text)
    add_checkpoint(begin_run(tmp_path / "run"), GPT(TINY), 3)
    assert lowtide(*TOKENIZE, cwd=tmp_path).code == 0
    learnt = ("train-tokenizer", "a.txt", "--out", "vocabulary", "--vocab-size", "300")
    assert lowtide(*learnt, cwd=tmp_path).code == 0
    return tmp_path


def places_in(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where something stands in a record, itself and what it holds."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else ())
    )
    for key, held in items:
        yield (*path, key)
        yield from places_in(held, (*path, key))


def changed(record: object, place: tuple[str | int, ...], value: object) -> object:
    """The record with another value in one place."""
    record = copy.deepcopy(record)
    inner = record
    for key in place[:-1]:
        inner = inner[key]  # type: ignore[index]
    inner[place[-1]] = value  # type: ignore[index]
    return record


@pytest.mark.slow  # a call for every value in every place
@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name, calls in CALLS.items() for command in calls]
)
def test_a_resealed_record_is_no_fault_of_lowtide(folder: Path, name: str, command: str) -> None:
    (path,) = folder.glob(f"*/{name}")
    record = read_sealed(path)
    call = CALLS[name][command]
    assert lowtide(*call, cwd=folder).code == NOT_DONE.get(call, 0)
    write_sealed(path, {})
    unread = lowtide(*call, cwd=folder)
    assert unread.code in (2, 4)
    assert path.name in unread.out + unread.err
    faults = []
    for place in places_in(record):
        for other in OTHERS:
            write_sealed(path, changed(record, place, other))  # type: ignore[arg-type]
            shutil.rmtree(folder / "new", ignore_errors=True)
            done = lowtide(*call, cwd=folder)
            if "fault of lowtide" in done.err or "Traceback" in done.err:
                faults.append((place, other, done.err))
    assert faults == []
