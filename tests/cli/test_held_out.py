"""What a single document leaves for validation: its tail, or nothing, but never by chance all of it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lowtide.settings import TokenizeSettings
from lowtide.shards.manifest import read_manifest
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.stages.settings import choose_held_out
from tests.commands import Outcome, bytes_of, lowtide

CHOSEN = b"A short note, number 329.\n"
"""One of the texts in 2,000 that the hash holds out."""
NOTHING, TENTH = (
    "nothing is held out for validation; ",
    "the last 10 % is held out for validation; ",
)
CASES = {
    "a long file": ("a.txt", 5000 * CHOSEN, (), TENTH),
    "a short file": ("a.txt", CHOSEN, (), f"{NOTHING}`--val 0.1` "),
    "a short file with --val": ("a.txt", 99 * CHOSEN, ("--val", "0.1"), TENTH),
    "no validation": ("a.txt", 5000 * CHOSEN, ("--val", "0"), f"{NOTHING}`--val 0.1` "),
    "gz": ("a.txt.gz", gzip.compress(CHOSEN), (), f"{NOTHING}`--split tail --val 0.1` "),
    "gz with its tail": (
        "a.txt.gz",
        gzip.compress(5000 * CHOSEN),
        ("--split", "tail", "--val", "0.1"),
        TENTH,
    ),
    "stdin": ("-", CHOSEN, (), f"{NOTHING}of a file "),
}
BY_HASH = {
    "a file": ("a.txt", CHOSEN, ("--split", "hash")),
    "gz": ("a.txt.gz", gzip.compress(CHOSEN), ("--val", "0.0005")),
    "stdin": ("-", CHOSEN, ("--val", "0.0005")),
}


def run(folder: Path, name: str, content: bytes, *flags: str) -> Outcome:
    if name != "-":
        (folder / name).write_bytes(content)
    command = ("tokenize", name, "--out", "out", *flags)
    return lowtide(*command, stdin=content if name == "-" else b"", cwd=folder)


def tokens(folder: Path) -> tuple[int, int]:
    """Of training, and of validation."""
    splits = read_manifest(folder / "out").splits
    return splits["train"].tokens, splits["val"].tokens


@pytest.mark.parametrize("case", CASES)
def test_a_single_document_is_trained_on_and_the_note_says_what_is_held_out(
    tmp_path: Path, case: str
) -> None:
    name, content, flags, words = CASES[case]
    done = run(tmp_path, name, content, *flags)
    assert done.code == 0, done.err
    assert f"one document: {words}" in done.err
    train, val = tokens(tmp_path)
    assert train
    assert bool(val) == (words == TENTH)
    assert val == pytest.approx((train + val) / 10 if val else 0, rel=0.1)
    assert read_manifest(tmp_path / "out").settings["val"] == (0.1 if val else 0.0)
    assert lowtide("verify", tmp_path / "out").code == 0


@pytest.mark.parametrize("case", [case for case in CASES if case != "stdin"])
def test_a_dry_run_says_the_same(tmp_path: Path, case: str) -> None:
    name, content, flags, words = CASES[case]
    shown = run(tmp_path, name, content, *flags, "--dry-run")
    assert shown.code == 0, shown.err
    rows = {line[:12].strip(): line[13:] for line in shown.out.splitlines()}
    assert rows["held out"].strip().startswith(words)


@pytest.mark.parametrize("case", BY_HASH)
def test_who_asks_for_the_hash_gets_it(tmp_path: Path, case: str) -> None:
    name, content, flags = BY_HASH[case]
    done = run(tmp_path, name, content, *flags)
    assert "one document: a hash of its text decides" in done.err
    train, val = tokens(tmp_path)
    assert train == 0
    assert val


@pytest.mark.parametrize(
    ("size_bytes", "share", "rule"),
    [
        (99_999, 0.0, "hash"),
        (100_000, 0.1, "tail"),
        (10_000_000, 0.1, "tail"),
        (20_000_000, 0.05, "tail"),
        (1_000_000_000_000, 0.0005, "tail"),
    ],
)
def test_a_tenth_is_held_out_from_100_kb_on_and_at_most_1_mb(
    size_bytes: int, share: float, rule: str
) -> None:
    one = InputFile(path=Path("a.txt"), kind=InputKind.TEXT, size_bytes=size_bytes)
    chosen = choose_held_out(TokenizeSettings(), [one])
    assert (chosen.val, chosen.split) == (share, rule)
    many = choose_held_out(TokenizeSettings(), [one, one])
    assert (many.val, many.split) == (0.0005, "hash")


EARLIER = ("--val", "0.0005", "--split", "hash")
"""What was stored by default for a short or compressed text."""


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_the_earlier_default_is_resumed(
    corpus: Path, tmp_path: Path, finished: bool
) -> None:
    content = gzip.compress(corpus.read_bytes(), 1)
    if not finished:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / ".stop").touch()
    assert run(tmp_path, "a.txt.gz", content, *EARLIER).code == (0 if finished else 75)
    again = lowtide("tokenize", "a.txt.gz", "--out", "out", cwd=tmp_path)
    assert again.code == 0, again.err
    assert lowtide("tokenize", "a.txt.gz", "--out", "new", cwd=tmp_path).code == 0
    old, new = (bytes_of(tmp_path / name) for name in ("out", "new"))
    names = {name for name in new if name.endswith(".npy")}
    assert names
    assert {name: old[name] for name in names} == {name: new[name] for name in names}
    assert (read_manifest(tmp_path / "out").settings["val"] == 0.0) == (not finished)


def test_a_folder_that_held_out_the_whole_text_is_another(tmp_path: Path) -> None:
    assert run(tmp_path, "a.txt", CHOSEN, *EARLIER).code == 0
    refused = lowtide("tokenize", "a.txt", "--out", "out", cwd=tmp_path)
    assert refused.code == 2
    assert "--val was 0.0005, is 0.0" in refused.problem
