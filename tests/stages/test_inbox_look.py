"""Only whole files are seen: marked ones, or those that rest and that nobody writes to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lowtide.errors import StorageError
from lowtide.guard.open_files import find_written
from lowtide.stages.inbox import look
from lowtide.stages.inbox.ledger import Ledger
from lowtide.stages.inbox.look import FolderScan, FoundFile, Intake, ScanResult
from tests.stages.inboxes import make_scene


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def never(_found: FoundFile) -> bool:
    return False


def watch(
    folder: Path,
    *,
    marker: str | None = None,
    takes_text: bool = False,
    is_known: Callable[[FoundFile], bool] = never,
) -> tuple[FolderScan, Clock]:
    clock = Clock()
    made = FolderScan(folder, marker=marker, takes_text=takes_text, is_known=is_known, clock=clock)
    return made, clock


def names(looked: ScanResult) -> list[str]:
    return [found.name for found in looked.complete]


def test_a_file_counts_when_it_was_the_same_two_seconds_later(tmp_path: Path) -> None:
    lookout, clock = watch(tmp_path)
    (tmp_path / "b.jsonl").write_text("{}\n")
    assert lookout.look() == ScanResult(settling=1)
    clock.now = 1.9
    assert lookout.look() == ScanResult(settling=1)
    (tmp_path / "a.jsonl").write_text("{}\n")
    clock.now = 2.0
    assert names(lookout.look()) == ["b.jsonl"]
    clock.now = 4.0
    assert names(lookout.look()) == ["a.jsonl", "b.jsonl"], "by name"


def test_a_file_that_grows_is_not_taken_and_not_waited_for(tmp_path: Path) -> None:
    lookout, clock = watch(tmp_path)
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    lookout.look()
    for now in (3.0, 6.0):
        with path.open("a") as file:
            file.write("{}\n")
        clock.now = now
        assert lookout.look() == ScanResult(unfinished=1)
    clock.now = 8.0
    assert names(lookout.look()) == ["a.jsonl"]


def test_a_file_that_is_renamed_over_another_starts_anew(tmp_path: Path) -> None:
    lookout, clock = watch(tmp_path)
    (tmp_path / "a.jsonl").write_text("{}\n")
    lookout.look()
    (tmp_path / ".new").write_text("[]\n")
    (tmp_path / ".new").rename(tmp_path / "a.jsonl")
    clock.now = 2.0
    assert names(lookout.look()) == []
    clock.now = 4.0
    assert names(lookout.look()) == ["a.jsonl"]


def test_a_file_that_rested_for_long_counts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookout, _ = watch(tmp_path)
    (tmp_path / "a.jsonl").write_text("{}\n")
    os.utime(tmp_path / "a.jsonl", (1, 1))
    assert names(lookout.look()) == [], "its time of writing can be set by anyone"
    monkeypatch.setattr(look, "_QUIET_SECONDS", 0.0)
    assert names(lookout.look()) == ["a.jsonl"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who writes")
def test_a_file_that_a_process_still_writes_to_is_left(tmp_path: Path) -> None:
    lookout, clock = watch(tmp_path)
    path = tmp_path / "a.jsonl"
    program = "import sys; f = open(sys.argv[1], 'a'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        lookout.look()
        clock.now = 60.0
        assert lookout.look() == ScanResult(unfinished=1)
        with path.open("rb"):  # who reads does not disturb
            seen = path.stat()
            assert find_written({(seen.st_dev, seen.st_ino)}) == {(seen.st_dev, seen.st_ino)}
            writer.communicate()
            assert names(lookout.look()) == ["a.jsonl"]


def test_with_a_marker_only_marked_files_count_and_at_once(tmp_path: Path) -> None:
    lookout, _ = watch(tmp_path, marker=".done")
    (tmp_path / "a.jsonl").write_text("{}\n")
    (tmp_path / "b.jsonl").write_text("{}\n")
    (tmp_path / "b.jsonl.done").touch()
    (tmp_path / "c.jsonl.done").touch()
    looked = lookout.look()
    assert names(looked) == ["b.jsonl"]
    assert (looked.settling, looked.unfinished) == (0, 1)


def test_hidden_and_half_written_names_and_what_is_no_file_are_left_alone(tmp_path: Path) -> None:
    lookout, clock = watch(tmp_path)
    for name in (".a.jsonl", "a.jsonl.tmp", "a.jsonl.part", "a.partial", "a.jsonl.crdownload",
                 "a.jsonl.incomplete", "a.jsonl.lock", "a.jsonl~", "README", "lowtide.toml",
                 "notes.txt", "a.json", "chat.jinja"):  # fmt: skip
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "nowhere.jsonl").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(tmp_path / "socket.jsonl"))
        lookout.look()
        clock.now = 2.0
        assert lookout.look() == ScanResult()


def test_a_link_to_a_file_is_the_file(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (tmp_path / "elsewhere.jsonl").write_text("{}\n")
    (inbox / "a.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    lookout, clock = watch(inbox)
    lookout.look()
    clock.now = 2.0
    assert names(lookout.look()) == ["a.jsonl"]


def test_every_format_counts_and_text_where_documents_are_read(tmp_path: Path) -> None:
    rows = ["a.jsonl", "b.ndjson", "c.parquet", "d.arrow", "e.jsonl.gz", "f.jsonl.zst"]
    for name in (*rows, "g.txt", "h.txt.gz"):
        (tmp_path / name).write_text("x")
    for takes_text, wanted in ((False, rows), (True, [*rows, "g.txt", "h.txt.gz"])):
        lookout, clock = watch(tmp_path, takes_text=takes_text)
        lookout.look()
        clock.now = 2.0
        assert names(lookout.look()) == wanted


def test_what_was_taken_is_not_seen_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("x")
    lookout, _ = watch(tmp_path, is_known=lambda found: found.name == "a.jsonl")
    assert lookout.look() == ScanResult()


def test_a_folder_that_is_away_is_waited_for_and_told_once(tmp_path: Path) -> None:
    scene = make_scene(tmp_path / "scene")
    scene.put("a.jsonl")
    warned: list[str] = []
    with closing(Ledger(tmp_path)) as ledger:
        intake = Intake(scene.prepare(), ledger, lambda text, _: warned.append(text))
        scene.inbox.rename(tmp_path / "away")
        assert (intake.take(patient=True), intake.take(patient=True)) == (None, None)
        assert len(warned) == 1
        assert "it is waited for" in warned[0]
        with pytest.raises(StorageError, match="cannot be looked into"):
            intake.take(patient=False)
        (tmp_path / "away").rename(scene.inbox)
        assert intake.take(patient=True) is not None
