"""An input that is overwritten during a run, its time of writing set back, never gives mixed tokens.

Only a change of the text counts: a backup that makes a hard link, or other rights, end no run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lowtide
from lowtide.errors import ChangedInputError, StoppedError, UsageError
from lowtide.events import Advanced, Event, StopReason
from lowtide.source.find_inputs import find_inputs
from lowtide.source.stream import Cursor, read_blocks
from lowtide.stages import watch_run
from lowtide.stages.job import load_record, store_record
from lowtide.stages.shard_run import ShardProgress
from lowtide.storage.fingerprint import fingerprint_file
from tests.commands import bytes_of
from tests.source.readings import reading

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


def overwrite(path: Path, places: Sequence[bytes] = PLACES) -> None:
    """Other words in place of some, between what a fingerprint samples, and the time as it was."""
    before, known = path.stat(), fingerprint_file(path)
    content = path.read_bytes()
    with path.open("r+b") as file:
        for words in places:
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
    options = {"memory": "512MiB", "workers": 1} | options
    return lowtide.tokenize([path], out, settings, **options)


def learn(path: Path, out: Path, **options: Any) -> object:
    settings = lowtide.TokenizerSettings(vocab_size=(400,), separator="line")
    options = {"memory": "512MiB", "workers": 1, "checkpoint_seconds": 0.0} | options
    return lowtide.train_tokenizer([path], out, settings, **options)


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


def stop_after(do: Callable[[], object]) -> Callable[[], StopReason | None]:
    """Ask a run to end when it first tells of itself, after doing something once."""
    done: list[object] = []

    def should_stop() -> StopReason | None:
        if not done:
            done.append(do())
        return "terminated"

    return should_stop


STAGES = [(tokenize, ".txt"), (tokenize, ".jsonl"), (tokenize, ".arrow"), (learn, ".txt")]


@pytest.mark.parametrize(("stage", "suffix"), STAGES)
@pytest.mark.parametrize("stops", [1, 2])
def test_a_stop_between_two_versions_mixes_no_tokens(
    tmp_path: Path, stage: Callable[..., object], suffix: str, stops: int
) -> None:
    path, out = write_input(tmp_path / f"a{suffix}"), tmp_path / "out"
    for _ in range(stops):
        with pytest.raises(StoppedError):
            stage(path, out, should_stop=stop_after(lambda: None))
    overwrite(path)
    for _ in range(2):
        with pytest.raises(ChangedInputError):
            stage(path, out)
    assert not list(out.glob("lowtide*.json"))


@pytest.mark.parametrize(("stage", "suffix"), STAGES)
def test_a_stopped_run_goes_on_after_a_backup_at_any_budget(
    tmp_path: Path, stage: Callable[..., object], suffix: str
) -> None:
    path, out = write_input(tmp_path / f"a{suffix}"), tmp_path / "out"
    for number in range(2):
        with pytest.raises(StoppedError):
            stage(path, out, should_stop=stop_after(lambda: None))
        path.with_name(f"backup{number}").hardlink_to(path)
    stage(path, out, memory="1GiB")
    stage(path, tmp_path / "whole")
    made, whole = bytes_of(out), bytes_of(tmp_path / "whole")
    assert made | {"run.json": b""} == whole | {"run.json": b""}  # how long it took


def test_what_is_overwritten_ahead_of_a_stopped_run_is_read_as_it_is(tmp_path: Path) -> None:
    path, out = write_input(tmp_path / "a.txt"), tmp_path / "out"
    with pytest.raises(StoppedError):
        tokenize(path, out, should_stop=stop_after(lambda: overwrite(path, PLACES[1:])))
    tokenize(path, out)
    tokenize(path, tmp_path / "whole")
    assert bytes_of(out) == bytes_of(tmp_path / "whole")


def test_a_stop_tells_of_an_input_that_was_written_to(tmp_path: Path) -> None:
    path, out = write_input(tmp_path / "a.txt"), tmp_path / "out"
    with pytest.raises(ChangedInputError):
        tokenize(path, out, should_stop=stop_after(lambda: path.write_text("other text")))


def test_no_checkpoint_leaves_a_file_of_two_versions(tmp_path: Path) -> None:
    """The last block of a file may be full: whoever takes it has not yet asked for the next."""
    path = write_input(tmp_path / "a.txt")
    settings = reading(separator="line", block_bytes=200_000)
    blocks = read_blocks(find_inputs([str(path)]), settings, start=Cursor(file=0, position=0))
    next(blocks)
    overwrite(path)
    files: set[int] = set()
    with pytest.raises(ChangedInputError):
        files.update(block.after.file for block in blocks)
    assert files == {0}


def test_a_checkpoint_without_what_was_read_is_gone_on_from(tmp_path: Path) -> None:
    path, out = write_input(tmp_path / "a.txt"), tmp_path / "out"
    with pytest.raises(StoppedError):
        tokenize(path, out, should_stop=stop_after(lambda: None))
    stored = out / ".lowtide" / "progress.json"
    progress = load_record(stored, ShardProgress)
    assert progress.partly_read is not None
    store_record(stored, replace(progress, partly_read=None))
    tokenize(path, out)
    tokenize(path, tmp_path / "whole")
    assert bytes_of(out) == bytes_of(tmp_path / "whole")
