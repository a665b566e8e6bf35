"""What is not a file's fault ends the run with a remedy; what a run lost is never replaced in silence."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from lowtide.errors import (
    DataError,
    LowtideError,
    SharedFaultError,
    StoppedError,
    StorageError,
    UsageError,
    VerificationError,
)
from lowtide.events import Event, Note, Stepped
from lowtide.stages.inbox import file_shards, tokenize_child, train_on_inbox
from lowtide.training.run_folder import RunRecord, write_run_record
from tests.commands import call
from tests.stages.inboxes import Scene, entries, make_scene, stages, work_left
from tests.training.small_runs import Heard, tensors_of


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return make_scene(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A run that is done with one file. Copy the run before it is changed."""
    scene = make_scene(tmp_path_factory.mktemp("trained"))
    scene.configure(val=0.2)
    scene.put("a.jsonl", 30)
    scene.train()
    return scene


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A run that was stopped in the middle of a file, and `whole`, which was not."""
    scene = make_scene(tmp_path_factory.mktemp("stopped"))
    scene.put("a.jsonl", 40)
    scene.train(scene.folder / "whole")

    def listen(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            (scene.run / ".stop").touch()

    with pytest.raises(StoppedError):
        scene.train(listen=listen)
    return scene


def copy_of(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def change_tokenizer(scene: Scene) -> None:
    """Two tokens swap their ids."""
    path = scene.folder / "tokenizer" / "tokenizer.json"
    file = json.loads(path.read_text())
    ids = file["model"]["vocab"]
    first, second = list(ids)[300:302]
    ids[first], ids[second] = ids[second], ids[first]
    path.write_text(json.dumps(file))


def when_tokenizing(name: str, change: Callable[[], object]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, Note) and f"tokenizing {name}" in event.text:
            change()

    return listen


def test_another_tokenizer_is_refused_between_two_runs_and_during_one(scene: Scene) -> None:
    scene.put("a.jsonl")
    scene.train()
    scene.put("b.jsonl", seed=1)
    kept = (scene.folder / "tokenizer" / "tokenizer.json").read_bytes()
    listen = when_tokenizing("b.jsonl", lambda: change_tokenizer(scene))
    with pytest.raises(UsageError, match="tokenizer has changed since the run began"):
        scene.train(listen=listen)
    assert stages(scene.run) == [("a.jsonl", "done"), ("b.jsonl", "taken")]
    with pytest.raises(UsageError, match="tokenizer_content was"):
        scene.train()
    (scene.folder / "tokenizer" / "tokenizer.json").write_bytes(kept)
    assert scene.train()[0].done == 2, "the remedy"


ENDLESS = (
    "{% for i in range(9999) %}{% for j in range(9999) %}{{ messages }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("change", "kind", "problem"),
    [
        (Path.unlink, UsageError, "mine.jinja"),
        (lambda path: path.write_text("{{ messages }}"), UsageError, "has changed since the run"),
        (None, SharedFaultError, "a.jsonl, line 1: template .*mine.jinja"),
    ],
    ids=["gone", "changed", "endless"],
)
def test_a_template_is_no_files_fault(
    scene: Scene,
    change: Callable[[Path], object] | None,
    kind: type[LowtideError],
    problem: str,
) -> None:
    path = scene.inbox / "mine.jinja"
    path.write_text(ENDLESS if change is None else "{{ messages[0].content }}")
    scene.configure(template="mine.jinja", learn="all")
    scene.put("a.jsonl")
    listen = when_tokenizing("a.jsonl", lambda: change and change(path))
    with pytest.raises(kind, match=problem):
        scene.train(listen=listen)
    assert stages(scene.run) == [("a.jsonl", "taken")]


@pytest.mark.parametrize(
    ("error", "is_the_files"),
    [
        (DataError("template of a letter.jsonl is not JSON", remedy="mend it"), True),
        (UsageError("no such column", remedy="name another"), True),
        (SharedFaultError("whatever it says", remedy="mend the template"), False),
        (StorageError("the disk is full", remedy="make room"), False),
    ],
)
def test_whose_fault_it_is_follows_from_the_error_and_not_from_its_words(
    error: LowtideError, is_the_files: bool
) -> None:
    assert tokenize_child.is_the_files_fault(error) == is_the_files


def test_a_child_that_dies_ends_the_run_and_not_the_file(scene: Scene) -> None:
    scene.put("a.jsonl")
    with pytest.raises(LowtideError, match=r"tokenized a\.jsonl ended \(1\)") as told:
        scene.train(environment={"PYTHONHOME": "/nowhere"})
    assert told.value.exit_code == 1
    assert stages(scene.run) == [("a.jsonl", "taken")]


def kill_children(kills: int) -> None:
    killed: set[int] = set()
    until = time.monotonic() + 300
    while len(killed) < kills and time.monotonic() < until:
        for child in psutil.Process().children():
            with suppress(psutil.Error):  # it has ended, or nobody has waited for it yet
                if "lowtide.stages.inbox.tokenize_child" in child.cmdline():
                    child.kill()
                    killed.add(child.pid)
        time.sleep(0.01)


@pytest.mark.parametrize("kills", [1, 2])
def test_a_child_that_is_killed_gets_a_second_chance(scene: Scene, kills: int) -> None:
    scene.put("a.jsonl")
    killer = threading.Thread(target=kill_children, args=(kills,))
    killer.start()
    if kills == 2:
        with pytest.raises(LowtideError, match=r"killed twice \(signal 9\)") as told:
            scene.train()
        assert (told.value.exit_code, "`--memory`" in told.value.remedy) == (1, True)
        assert stages(scene.run) == [("a.jsonl", "taken")]
    else:
        assert scene.train()[0].done == 1
    killer.join()


def test_a_disk_that_says_no_is_not_the_files_fault(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.put("a.jsonl")
    with monkeypatch.context() as patch:
        for module in (train_on_inbox, file_shards):
            patch.setattr(module, "WORK_NAME", "missing/inbox")
        with pytest.raises(StorageError):
            scene.train()
    assert scene.train()[0].done == 1


def cut_last_lines(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20:] = bytes(20)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda run: (run / "inbox.jsonl").unlink(), "lines of it are lost"),
        (lambda run: (run / "inbox.jsonl").write_text(""), "lines of it are lost"),
        (lambda run: cut_last_lines(run / "inbox.jsonl"), "lines of it are lost"),
        (lambda run: (run / "inbox.jsonl").write_text("garbled\n"), "line 1 of .*inbox.jsonl"),
        (lambda run: shutil.rmtree(run / "held-out"), "held-out is missing"),
        (lambda run: spoil(run / "held-out" / "val_000000.npy"), "held-out is damaged"),
        (lambda run: (run / "held-out" / "val_000000.npy").unlink(), "held-out is damaged"),
        (lambda run: (run / "held-out" / "lowtide.json").unlink(), "held-out is missing"),
        (lambda run: (run / "held-out" / "lowtide.json").write_text("{}"), "is another than"),
    ],
)
def test_a_lost_part_of_a_run_is_told_and_not_made_up_for(
    trained: Scene, tmp_path: Path, damage: Callable[[Path], object], problem: str
) -> None:
    run = copy_of(trained.run, tmp_path)
    damage(run)
    with pytest.raises(VerificationError, match=problem) as told:
        trained.train(run)
    assert "from a copy" in told.value.remedy
    assert f"`--init {run}`" in told.value.remedy


def shards_in(run: Path) -> Path:
    (shards,) = (run / ".lowtide" / "inbox").iterdir()
    return shards


def test_damaged_shards_are_made_again(stopped: Scene, tmp_path: Path) -> None:
    run = copy_of(stopped.run, tmp_path)
    spoil(shards_in(run) / "train_000000.npy")
    _, heard = stopped.train(run)
    assert any("are damaged: it is tokenized again" in text for text in heard.notes)
    assert tensors_of(run) == tensors_of(stopped.folder / "whole")


@pytest.mark.parametrize("damage", ["spoilt", "removed"])
def test_a_file_that_is_learnt_in_part_is_asked_for_and_never_begun_again(
    stopped: Scene, tmp_path: Path, damage: str
) -> None:
    run, file = copy_of(stopped.run, tmp_path), stopped.inbox / "a.jsonl"
    if damage == "spoilt":
        spoil(shards_in(run) / "train_000000.npy")
    else:
        shutil.rmtree(shards_in(run))
    file.rename(tmp_path / "aside")
    try:
        for _ in range(2):
            with pytest.raises(VerificationError, match="not in the inbox as it was") as told:
                stopped.train(run)
            assert "put a.jsonl" in told.value.remedy
    finally:
        (tmp_path / "aside").rename(file)
    assert [stage for _, stage in stages(run)] == ["ready"]
    if damage == "removed":
        os.utime(file)  # as a copy would come back
        stopped.train(run)
        assert tensors_of(run) == tensors_of(stopped.folder / "whole"), "the remedy"


def warned(heard: Heard) -> list[str]:
    return [one.text for one in heard.events if isinstance(one, Note) and one.level == "warning"]


def test_odd_names_steer_no_terminal_and_block_no_file(scene: Scene) -> None:
    scene.configure(val=0.0001)
    scene.put("a\x1b[31m.jsonl", 10)
    odd = os.fsdecode(b"b\xff.jsonl")
    scene.put_text(odd, "{}")
    (scene.inbox / "old").mkdir()
    (scene.inbox / "README.md").touch()
    result, heard = scene.train()
    assert result.done == 1
    assert not any("\x1b" in text or "\udcff" in text for text in heard.notes)
    assert any("a\\x1b[31m.jsonl is done" in text for text in heard.notes)
    assert sum("its name is not UTF-8" in text for text in warned(heard)) == 1
    for name in ("old", "README.md"):
        assert sum(f"{name} is left alone" in text for text in heard.notes) == 1
    assert sum("nothing is held out so far" in text for text in warned(heard)) == 1
    assert work_left(scene.run) == []


def test_rows_that_are_left_out_are_counted_and_told(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.configure(bad_text="skip")
    path = scene.put("a.jsonl", 20)
    long = {"messages": [{"role": role, "content": "tide " * 90} for role in ("user", "assistant")]}
    path.write_text(path.read_text() + '{"messages": 1}\n' * 3 + json.dumps(long) + "\n")
    _, heard = scene.train()
    (entry,) = entries(scene.run)
    assert entry.bad_rows == 3
    assert entry.too_long >= 1
    told = f"bad rows: 3, examples that were too long: {entry.too_long}"
    assert any(told in text for text in heard.notes)
    files = call(capsys, "inspect", scene.run, "--json").json["files"]
    assert isinstance(files, list)
    assert files[0]["bad_rows"] == 3
    assert told in call(capsys, "inspect", scene.run).out


def test_a_run_over_an_inbox_and_one_over_a_dataset_are_told_apart(
    trained: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = call(capsys, "train", trained.inbox, "--out", trained.run)
    assert (ended.code, ended.problem) == (2, f"{trained.run} is a run over an inbox")
    record = RunRecord(folder=tmp_path, settings=trained.settings, stream={}, tool_version="0")
    write_run_record(record)
    ended = call(capsys, *trained.arguments(tmp_path))
    assert ended.code == 2
    assert "is a run over a dataset, not over an inbox" in ended.problem


def test_a_plan_does_not_hide_that_another_start_is_named(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoints of the run win: who names another start must not think that it is used."""
    scene.put("a.jsonl")
    assert call(capsys, *scene.arguments()).code == 0
    refused = call(capsys, *scene.arguments(None, "--init", str(scene.folder / "elsewhere")))
    assert refused.code == 2
    assert "started from random weights" in refused.err
