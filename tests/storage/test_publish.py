"""Outputs are absent or whole."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide.errors import StorageError
from lowtide.storage.publish import (
    publish,
    remove_leftovers,
    storage_error,
    storage_errors,
    sync_folder,
    write_atomically,
)


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_file_holds_exactly_the_bytes_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "lowtide.json"
    write_atomically(target, b"first")
    write_atomically(target, b"second \x00\xff")
    assert target.read_bytes() == b"second \x00\xff"
    assert _names(tmp_path) == ["lowtide.json"]


def test_publish_gives_a_finished_file_its_name(tmp_path: Path) -> None:
    partial, final = tmp_path / "a.partial", tmp_path / "a.npy"
    partial.write_bytes(b"new")
    final.write_bytes(b"old")
    publish(partial, final)
    assert final.read_bytes() == b"new"
    assert _names(tmp_path) == ["a.npy"]


_OVERWRITE_FOR_EVER = """
import sys
from pathlib import Path
from lowtide.storage.publish import write_atomically
print("ready", flush=True)
while True:
    for letter in (b"a", b"b"):
        write_atomically(Path(sys.argv[1]), letter * 300_000)
"""


def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"a" * 300_000)
    for turn in range(8):
        command = [sys.executable, "-c", _OVERWRITE_FOR_EVER, str(target)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.003 * turn)
            process.send_signal(signal.SIGKILL)
        assert target.read_bytes() in (b"a" * 300_000, b"b" * 300_000)
        remove_leftovers(tmp_path)
        assert _names(tmp_path) == ["file"]


def test_leftovers_of_a_killed_run_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = ["train_000000.npy", "notes.tmp", ".stop", ".a.tmp", "a.12.tmp"]
    for name in [*kept, ".lowtide.json.4711.tmp", ".with.dots.and spaces.1.tmp"]:
        (tmp_path / name).touch()
    assert remove_leftovers(tmp_path) == 2
    assert _names(tmp_path) == sorted(kept)


def test_a_leftover_of_the_same_process_number_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f".file.{os.getpid()}.tmp").write_bytes(b"of a run before the reboot")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert _names(tmp_path) == ["file"]


_WRITE = "from pathlib import Path; from lowtide.storage.publish import write_atomically; "


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("write", "ENOSPC"),
        ("fsync", "EIO"),
        ("rename,renameat,renameat2", "EIO"),
        ("write", "EDQUOT"),
    ],
)
def test_a_failing_disk_is_a_storage_error_and_the_old_file_stands(
    tmp_path: Path, call: str, fault: str
) -> None:
    target, log = tmp_path / "out" / "file", tmp_path / "log"
    target.parent.mkdir()
    target.write_bytes(b"old")
    inject = f"inject={call}:error={fault}:when=1+"
    code = _WRITE + f"write_atomically(Path({str(target)!r}), b'n' * 300_000)"
    # only calls on this folder are failed, so that Python itself can start
    watch = ["strace", "-f", "-o", str(log), "-P", str(target.parent), "-P", str(target)]
    watch += ["-P", str(target.with_name(f".{target.name}.1.tmp")), "-e", f"trace={call}"]
    done = subprocess.run(
        [*watch, "-e", inject, sys.executable, "-c", "import os; os.getpid = lambda: 1; " + code],
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert "INJECTED" in log.read_text(), done.stderr
    assert "StorageError" in done.stderr
    assert fault in done.stderr
    assert target.read_bytes() == b"old"
    assert _names(target.parent) == ["file"]


def test_an_unwritable_place_is_named_with_a_remedy_that_works(tmp_path: Path) -> None:
    target = tmp_path / "missing" / "file"
    with pytest.raises(StorageError) as caught:
        write_atomically(target, b"data")
    assert str(target) in caught.value.problem
    assert f"the folder {target.parent} exists" in caught.value.remedy
    target.parent.mkdir()
    write_atomically(target, b"data")
    assert target.read_bytes() == b"data"


def test_a_folder_in_the_way_is_named_and_moving_it_works(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.mkdir()
    with pytest.raises(StorageError) as caught:
        write_atomically(target, b"data")
    assert f"move {target} away" in caught.value.remedy
    assert _names(tmp_path) == ["file"]
    target.rename(tmp_path / "away")
    write_atomically(target, b"data")
    assert target.read_bytes() == b"data"


def test_syncing_a_folder_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(StorageError, match="ENOENT"):
        sync_folder(tmp_path / "gone")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "can be written to"),
        (errno.EACCES, "allow access"),
        (errno.EIO, "check the disk"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EFBIG, "ulimit -f"),
        (errno.ENAMETOOLONG, "shorter name"),
        (errno.EBUSY, "check the disk"),
    ],
)
def test_each_answer_of_a_disk_has_its_own_advice(number: int, advice: str) -> None:
    error = storage_error(OSError(number, os.strerror(number)), Path("out/train_000000.npy"))
    assert advice in error.remedy
    assert os.strerror(number) in error.problem
    assert errno.errorcode[number] in error.problem
    assert "out/train_000000.npy" in error.problem


def test_only_the_systems_errors_are_renamed() -> None:
    with pytest.raises(ValueError, match="ours"), storage_errors(Path("x")):
        raise ValueError("ours")
    with pytest.raises(StorageError) as caught, storage_errors(Path("x"), doing="read"):
        raise OSError("without a number")
    assert caught.value.problem == "cannot read x: without a number (no error number)"
