"""One folder, one job: it goes on, is done already, begins again, or is refused with the reason."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from lowtide.errors import StorageError
from lowtide.events import Advanced, Event
from lowtide.stages.tokenize import tokenize
from tests.commands import (
    LOWTIDE,
    assert_nothing_half_written,
    bytes_of,
    call,
    forbid_removing,
    killed_on_failure,
    lowtide,
    manifest_of,
)

Capsys = pytest.CaptureFixture[str]


def stop_after_a_block(capsys: Capsys, *command: str | Path) -> None:
    """Leave an unfinished run: a `.stop` file that lies there beforehand is obeyed after the first block."""
    folder = Path(command[command.index("--out") + 1])
    folder.mkdir(exist_ok=True)
    (folder / ".stop").touch()
    stopped = call(capsys, *command)
    assert stopped.code == 75
    assert not (folder / ".stop").exists()


def test_a_stop_file_is_obeyed_and_consumed(
    capsys: Capsys, corpus: Path, dataset: Path, tmp_path: Path
) -> None:
    command = ("tokenize", corpus, "--separator", "line", "--out", tmp_path / "out")
    stop_after_a_block(capsys, *command)
    assert_nothing_half_written(tmp_path / "out")
    finished = call(capsys, *command)
    assert finished.code == 0
    assert "resuming" in finished.err
    assert bytes_of(tmp_path / "out") == bytes_of(dataset)


def test_a_stop_that_cannot_be_removed_is_a_stop(
    capsys: Capsys, corpus: Path, dataset: Path, tmp_path: Path
) -> None:
    command = ("tokenize", corpus, "--separator", "line", "--out", tmp_path / "out")
    (tmp_path / "out" / ".stop").mkdir(parents=True)
    assert call(capsys, *command).code == 75
    (tmp_path / "out" / ".stop").rmdir()
    assert_nothing_half_written(tmp_path / "out")
    assert call(capsys, *command).code == 0
    assert bytes_of(tmp_path / "out") == bytes_of(dataset)


def test_a_stop_of_another_user_is_a_stop(
    capsys: Capsys, corpus: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("tokenize", corpus, "--separator", "line", "--out", tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".stop").touch()
    with monkeypatch.context() as patch:
        forbid_removing(patch, ".stop")
        assert call(capsys, *command).code == 75
    (tmp_path / "out" / ".stop").unlink()
    assert call(capsys, *command).code == 0
    assert bytes_of(tmp_path / "out") == bytes_of(dataset)


def test_a_stop_file_that_comes_too_late_is_consumed(
    capsys: Capsys, corpus: Path, tmp_path: Path
) -> None:
    command = ("tokenize", corpus, "--out", tmp_path / "out")
    assert call(capsys, *command).code == 0
    (tmp_path / "out" / ".stop").touch()
    assert call(capsys, *command).code == 0
    assert call(capsys, "verify", tmp_path / "out").code == 0


def test_a_finished_job_says_so_and_touches_nothing(
    capsys: Capsys, corpus: Path, tmp_path: Path
) -> None:
    command = ("tokenize", corpus, "--out", tmp_path / "out")
    assert call(capsys, *command).code == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = lowtide(*command)
    assert again.code == 0
    assert "holds this very dataset already" in again.out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_a_finished_job_whose_files_are_gone_is_not_called_done(
    capsys: Capsys, corpus: Path, tmp_path: Path
) -> None:
    command = ("tokenize", corpus, "--out", tmp_path / "out")
    assert call(capsys, *command).code == 0
    (tmp_path / "out" / "train_000000.npy").unlink()
    found = call(capsys, *command)
    assert found.code == 4
    assert "train_000000.npy" in found.problem
    assert "--restart" in found.hint
    assert call(capsys, *command, "--restart").code == 0
    assert call(capsys, "verify", tmp_path / "out").code == 0


@pytest.mark.parametrize("finished", [True, False])
def test_changed_settings_are_refused_with_the_difference_and_restart_begins_again(
    capsys: Capsys, corpus: Path, tmp_path: Path, finished: bool
) -> None:
    out = tmp_path / "out"
    command = ("tokenize", corpus, "--out", out)
    if finished:
        assert call(capsys, *command).code == 0
    else:
        stop_after_a_block(capsys, *command)
    before = bytes_of(out) if finished else None
    changed = (*command, "--val", "0.25", "--separator", "line")
    refused = call(capsys, *changed)
    assert refused.code == 2
    assert "--val was 0.1, is 0.25" in refused.problem
    assert "--separator was 'file', is 'line'" in refused.problem
    assert "--restart" in refused.hint
    if before:
        assert bytes_of(out) == before
    assert call(capsys, *changed, "--restart").code == 0
    settings = manifest_of(out)["settings"]
    assert isinstance(settings, dict)
    assert settings["val"] == 0.25


def test_changed_inputs_are_refused_with_the_difference(capsys: Capsys, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in "abc":
        (texts / f"{name}.txt").write_text(f"text of {name}")
    command = ("tokenize", texts, "--out", tmp_path / "out")
    assert call(capsys, *command).code == 0
    (texts / "a.txt").write_text("text of A")
    (texts / "b.txt").write_text("longer text of b")
    (texts / "c.txt").rename(texts / "d.txt")
    refused = call(capsys, *command)
    assert refused.code == 2
    for line in (
        "a.txt has changed (other content)",
        "b.txt has changed (size 16, was 9)",
        "c.txt is no longer among the inputs",
        "d.txt is a new input",
    ):
        assert line in refused.problem
    assert call(capsys, *command, "--restart").code == 0


def test_a_run_that_came_to_nothing_does_not_stand_in_the_way(
    capsys: Capsys, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "hello"}\n')
    command = ("tokenize", tmp_path / "a.jsonl", "--out", tmp_path / "out")
    refused = call(capsys, *command)
    assert refused.code == 2
    assert "body" in refused.problem
    assert call(capsys, *command, "--column", "body").code == 0


def test_two_runs_in_one_folder_the_second_is_refused(
    capsys: Capsys, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    started = subprocess.Popen(
        [*LOWTIDE, "tokenize", "-", "--out", str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with killed_on_failure(started) as first:
        deadline = time.monotonic() + 300
        while not (out / ".lowtide" / "progress.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        second = call(capsys, "tokenize", corpus, "--out", out)
        first.communicate(b"the first one's text", timeout=300)
    assert second.code == 2
    assert "another run" in second.problem
    assert first.returncode == 0
    assert call(capsys, "verify", out).code == 0


@pytest.mark.parametrize("restart", [(), ("--restart",)])
def test_a_folder_that_holds_something_else_is_refused_and_untouched(
    capsys: Capsys, corpus: Path, dataset: Path, tmp_path: Path, restart: tuple[str, ...]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "train_000000.npy").write_bytes(b"not yours")
    (photos / "holiday.jpg").write_bytes(b"a beach")
    before = bytes_of(photos)
    for command in (
        ("tokenize", corpus, *restart, "--out", photos),
        ("export", dataset, "--to", "npy", "--out", photos),
    ):
        refused = call(capsys, *command)
        assert refused.code == 2
        assert "something else" in refused.problem
        assert "--out" in refused.hint
        assert bytes_of(photos) == before


def test_a_file_in_place_of_the_folder_is_refused(
    capsys: Capsys, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file")
    refused = call(capsys, "tokenize", corpus, "--out", tmp_path / "out")
    assert refused.code == 2
    assert (tmp_path / "out").read_text() == "a file"


def test_restart_leaves_alone_what_lowtide_did_not_make(
    capsys: Capsys, corpus: Path, tmp_path: Path
) -> None:
    command = ("tokenize", corpus, "--out", tmp_path / "out")
    assert call(capsys, *command).code == 0
    (tmp_path / "out" / "notes.md").write_text("mine")
    assert call(capsys, *command, "--restart").code == 0
    assert (tmp_path / "out" / "notes.md").read_text() == "mine"


def test_an_output_folder_inside_the_input_folder_is_not_read(
    capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("print('tide')\n")
    monkeypatch.chdir(tmp_path)
    command = ("tokenize", ".", "--out", "tokens")
    assert call(capsys, *command).code == 0
    again = call(capsys, *command)
    assert again.code == 0
    assert "already" in again.out


def test_standard_input_is_read_and_said_to_be_read_once(capsys: Capsys, tmp_path: Path) -> None:
    text = "the tide comes in\n\nthe tide goes out\n"
    done = lowtide(
        *("tokenize", "-", "--separator", "blank-line", "--out", tmp_path / "out"),
        stdin=text.encode(),
    )
    assert done.code == 0
    assert "cannot be resumed" in done.err
    assert manifest_of(tmp_path / "out")["documents"] == 2


def test_standard_input_twice_is_refused_for_it_may_be_another_text(tmp_path: Path) -> None:
    command = ("tokenize", "-", "--out", tmp_path / "out")
    assert lowtide(*command, stdin=b"one").code == 0
    refused = lowtide(*command, stdin=b"two")
    assert refused.code == 2
    assert "standard input" in refused.problem
    assert refused.advice == ["--restart"]
    assert lowtide(*command, "--restart", stdin=b"two two two").code == 0
    assert manifest_of(tmp_path / "out")["tokens"] == 4


def test_an_unfinished_run_over_standard_input_is_refused_with_a_remedy(
    corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / ".stop").touch()
    command = ("tokenize", "-", "--out", out)
    stopped = lowtide(*command, stdin=corpus.read_bytes())
    assert stopped.code == 75
    assert stopped.advice == ["--restart"]
    refused = lowtide(*command, stdin=b"again")
    assert refused.code == 2
    assert "unfinished run over standard input" in refused.problem
    assert lowtide(*command, *refused.advice, stdin=b"again").code == 0


def test_standard_input_cannot_be_asked_about_beforehand(tmp_path: Path) -> None:
    refused = lowtide("tokenize", "-", "--dry-run", "--out", tmp_path / "out", stdin=b"text")
    assert refused.code == 2
    assert "--dry-run" in refused.hint


def test_a_run_with_nothing_left_to_read_has_a_peak(tmp_path: Path) -> None:
    """Its manifest could not be written, for a folder stood in its place: all tokens were."""
    out = tmp_path / "out"
    (tmp_path / "a.txt").write_text("some words " * 100)

    def stand_in_the_way(event: Event) -> None:
        if isinstance(event, Advanced) and event.done_bytes == event.total_bytes:
            (out / "lowtide.json").mkdir(exist_ok=True)

    with pytest.raises(StorageError):
        tokenize([tmp_path / "a.txt"], out, listen=stand_in_the_way)
    (out / "lowtide.json").rmdir()
    resumed = tokenize([tmp_path / "a.txt"], out)
    assert not resumed.already_done
    assert resumed.peak_private_bytes > 0


def test_an_export_obeys_a_stop_file_and_is_done_once(
    capsys: Capsys, dataset: Path, tmp_path: Path
) -> None:
    command = ("export", dataset, "--to", "llmc", "--out", tmp_path / "out")
    stop_after_a_block(capsys, *command)
    assert not (tmp_path / "out").exists()
    assert call(capsys, *command, "--json").json["already_done"] is False
    assert call(capsys, *command, "--json").json["already_done"] is True
    assert call(capsys, "verify", tmp_path / "out").code == 0
