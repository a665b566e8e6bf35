"""An input that is overwritten during a run, its time of writing set back, never gives mixed tokens.

Only a change of the text counts: a backup that makes a hard link, or other rights, end no run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lowtide
from lowtide.errors import ChangedInputError, UsageError
from lowtide.events import Advanced, Event
from lowtide.pipeline import watch_run
from lowtide.storage.fingerprint import fingerprint_file
from tests.commands import bytes_of

LINES = [f"line {number} of the tide table, and some words more" for number in range(60_000)]
PLACES = (b"line 3000 of", b"line 52500 of")
"""In what has been read when the run first tells of itself, and in what has not."""


def write_input(path: Path) -> Path:
    """More than a fingerprint reads, in the format that the name asks for."""
    if path.suffix == ".arrow":
        table = pa.table({"text": LINES})
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=500)
        return path
    rows = (f'{{"text": "{line}"}}' if path.suffix == ".jsonl" else line for line in LINES)
    path.write_text("\n".join(rows))
    return path


def overwrite(path: Path) -> None:
    """Other words in place of some, between what a fingerprint samples, and the time as it was."""
    before, known = path.stat(), fingerprint_file(path)
    content = path.read_bytes()
    with path.open("r+b") as file:
        for words in PLACES:
            file.seek(content.index(words))
            file.write(words.upper())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert fingerprint_file(path) == known


def during_the_run(path: Path, do: Callable[[Path], None]) -> Callable[[Event], None]:
    done: list[Event] = []

    def listen(event: Event) -> None:
        if isinstance(event, Advanced) and not done:
            done.append(event)
            do(path)

    return listen


def tokenize(path: Path, out: Path, **options: Any) -> object:
    settings = lowtide.TokenizeSettings(val=0.01, separator="line", shard_tokens=50_000)
    return lowtide.tokenize([path], out, settings, memory="512MiB", workers=1, **options)


def learn(path: Path, out: Path, **options: Any) -> object:
    settings = lowtide.TrainSettings(vocab_size=(400,), separator="line")
    options.setdefault("checkpoint_seconds", 0.0)
    return lowtide.train_tokenizer([path], out, settings, memory="512MiB", workers=1, **options)


@pytest.fixture(autouse=True)
def _tell_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_run, "_TELL_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("stage", "suffix"),
    [(tokenize, ".txt"), (tokenize, ".jsonl"), (tokenize, ".arrow"), (learn, ".txt")],
)
def test_an_overwritten_input_is_refused_and_nobody_goes_on_from_there(
    tmp_path: Path, stage: Callable[..., object], suffix: str
) -> None:
    path, out = write_input(tmp_path / f"a{suffix}"), tmp_path / "out"
    with pytest.raises(ChangedInputError):
        stage(path, out, listen=during_the_run(path, overwrite))
    assert not list(out.glob("lowtide*.json"))
    with pytest.raises(UsageError, match="has changed"):
        stage(path, out)


def test_begun_again_it_is_as_if_nothing_had_been(tmp_path: Path) -> None:
    path, out = write_input(tmp_path / "a.txt"), tmp_path / "out"
    with pytest.raises(ChangedInputError):
        tokenize(path, out, listen=during_the_run(path, overwrite))
    tokenize(path, out, restart=True)
    tokenize(path, tmp_path / "whole")
    assert bytes_of(out) == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("stage", [tokenize, learn])
@pytest.mark.parametrize(
    "touch",
    [lambda path: path.with_name("backup").hardlink_to(path), lambda path: path.chmod(0o640)],
    ids=["hard link", "rights"],
)
def test_a_backup_ends_no_run(
    tmp_path: Path, stage: Callable[..., object], touch: Callable[[Path], None]
) -> None:
    path = write_input(tmp_path / "a.txt")
    before = path.stat().st_ctime_ns
    stage(path, tmp_path / "out", listen=during_the_run(path, touch))
    assert path.stat().st_ctime_ns != before
    assert list((tmp_path / "out").glob("lowtide*.json"))


def test_a_file_overwritten_before_its_turn_is_refused_at_the_end(tmp_path: Path) -> None:
    first, second = write_input(tmp_path / "a.txt"), tmp_path / "b.txt"
    second.write_text("a small file, fingerprinted whole")

    def rewrite(path: Path) -> None:
        before = path.stat()
        path.write_text("a small file, FINGERPRINTED whole")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(ChangedInputError):
        lowtide.tokenize([first, second], tmp_path / "out", listen=during_the_run(second, rewrite))
