"""`--restart` replaces a run when the new one stands, and touches nothing that is not a run's."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide.errors import LowtideError, StoppedError, UsageError
from lowtide.events import Event, Saved, Stepped, StopReason
from lowtide.journal import LOG_NAME
from lowtide.stages import open_run, replace_run
from lowtide.stages.train import train
from lowtide.training import loop
from lowtide.training.checkpoint import find_checkpoints, step_of
from tests.commands import call
from tests.training.small_runs import (
    DiskUsage,
    make_settings,
    make_tokens,
    run_heard,
    tensors_of,
    told_of,
    write_plan,
)


class Desk:
    """A finished run, and what it consists of."""

    def __init__(self, folder: Path) -> None:
        self.data = make_tokens(folder / "tokens")
        self.run = folder / "run"
        self.settings = make_settings(self.data, steps=12, checkpoint_every=4)
        run_heard(self.run, self.settings)
        self.before = self.all_files()

    def all_files(self) -> dict[str, bytes]:
        """But for what marks whose folder it is."""
        return {
            str(path.relative_to(self.run)): path.read_bytes()
            for path in self.run.rglob("*")
            if path.is_file() and ".lowtide" not in path.parts
        }


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def fail(*_: object, **__: object) -> None:
    raise LowtideError("the disk broke", remedy="mend it")


@pytest.mark.parametrize("where", ["_check_disk", "_begin", "_try_checkpoints"])
def test_a_new_run_that_is_refused_leaves_the_old_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(open_run, where, fail)
    with pytest.raises(LowtideError, match="the disk broke"):
        run_heard(desk.run, make_settings(desk.data, seed=4), restart=True)
    assert desk.all_files() == desk.before


def test_a_new_run_that_fails_before_its_first_checkpoint_leaves_the_old_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "write_checkpoint", fail)
    with pytest.raises(LowtideError, match="the disk broke"):
        run_heard(desk.run, make_settings(desk.data, seed=4), restart=True)
    assert desk.all_files() == desk.before


def test_a_new_run_with_a_checkpoint_has_replaced_the_old_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(desk.data, seed=4, steps=9, checkpoint_every=3, evaluate_every=0)
    write, calls = loop.write_checkpoint, iter(range(9))
    monkeypatch.setattr(
        loop, "write_checkpoint", lambda *given: write(*given) if next(calls) < 1 else fail()
    )
    with pytest.raises(LowtideError, match="the disk broke"):
        run_heard(desk.run, settings, restart=True)
    assert [step_of(one) for one in find_checkpoints(desk.run)] == [3]
    assert not list(desk.run.rglob(".replaced"))


@pytest.mark.parametrize("restart", [False, True])
def test_a_stop_while_a_run_starts_changes_nothing(desk: Desk, restart: bool) -> None:
    """Asked for at any of the looks before the first step, by a signal or a file."""
    for looks in range(3):
        asked: list[StopReason | None] = [None] * looks + ["terminated"]
        with pytest.raises(StoppedError):
            train(
                desk.run,
                replace(desk.settings, steps=12),
                restart=restart,
                should_stop=lambda asked=asked: asked.pop(0) if asked else None,
            )
        assert desk.all_files() == desk.before
    with pytest.raises(StoppedError):
        train(desk.run / "new", desk.settings, should_stop=lambda: "interrupted")
    assert not (desk.run / "new").exists()


@pytest.mark.slow
def test_a_kill_before_the_first_checkpoint_brings_the_old_run_back(desk: Desk) -> None:
    plan = write_plan(desk.run.with_name("plan.toml"), make_settings(desk.data, seed=4))
    script = (
        "import os, sys; from lowtide.training import loop\n"
        "loop.write_checkpoint = lambda *_: os.kill(os.getpid(), 9)\n"
        "from lowtide.cli.main import main; main(sys.argv[1:])"
    )
    words = ["train", desk.data, "--plan", plan, "--out", desk.run, "--quiet", "--restart"]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], capture_output=True, check=False
    )
    assert done.returncode == -9, done.stderr
    assert find_checkpoints(desk.run) == []
    result, _ = run_heard(desk.run, desk.settings)
    assert result.already_done
    assert desk.all_files() == desk.before


class Killed(BaseException):
    """As if the process were no more: nobody cleans up after it."""


@pytest.mark.slow
@pytest.mark.parametrize("moves", range(8))
@pytest.mark.parametrize("coming_back", [False, True])
def test_a_kill_while_the_old_run_is_moved_loses_none_of_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, moves: int, coming_back: bool
) -> None:
    old, left, replace_path = replace_run.OldRun(desk.run), iter(range(moves)), Path.replace
    if coming_back:
        old.set_aside()
        (desk.run / "log.jsonl").write_text("of the new run")

    def replace_or_die(path: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise Killed
        return replace_path(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace_or_die)
        try:
            old.settle() if coming_back else old.set_aside()
        except Killed:
            pass
    again, _ = run_heard(desk.run, desk.settings)
    assert again.already_done
    assert desk.all_files() == desk.before


def test_what_somebody_else_put_there_stays(desk: Desk) -> None:
    mine = [
        "events.out.tfevents.999.myhost",
        ".mine.12.tmp",
        "checkpoints/backup/model.safetensors",
        "checkpoints/notes.txt",
        ".folder.3.tmp/x",
    ]
    for name in mine:
        (desk.run / name).parent.mkdir(exist_ok=True)
        (desk.run / name).write_text(name)
    for restart in (False, True):
        run_heard(desk.run, desk.settings, restart=restart)
        assert [(desk.run / name).read_text() for name in mine] == mine


def test_a_run_may_be_called_checkpoints(tmp_path: Path) -> None:
    data, run = make_tokens(tmp_path / "tokens"), tmp_path / "checkpoints"
    run_heard(run, make_settings(data))
    result, _ = run_heard(run, make_settings(data, seed=4), restart=True)
    assert not result.already_done
    assert [step_of(one) for one in find_checkpoints(run)][-1] == 24


@pytest.mark.parametrize(
    "name",
    ["checkpoints", "checkpoints/step-00000012", "tokenizer", ".replaced", "checkpoints/.replaced"],
)
@pytest.mark.parametrize("restart", [False, True])
def test_a_link_inside_a_run_is_not_written_through(desk: Desk, name: str, restart: bool) -> None:
    elsewhere, place = desk.run.with_name("elsewhere"), desk.run / name
    elsewhere.mkdir()
    if place.exists():
        elsewhere.rmdir()
        place.rename(elsewhere)
    (elsewhere / "step-00000007").mkdir()
    (elsewhere / "step-00000007" / "thesis").write_text("years of work")
    before = {path: path.is_file() and path.read_bytes() for path in elsewhere.rglob("*")}
    place.symlink_to(elsewhere)
    with pytest.raises(UsageError) as refused:
        run_heard(desk.run, make_settings(desk.data, seed=4 if restart else 0), restart=restart)
    assert f"{name}, which is a link" in refused.value.problem
    after = {path: path.is_file() and path.read_bytes() for path in elsewhere.rglob("*")}
    assert after == before


def test_a_run_folder_may_be_a_link_to_another_disk(desk: Desk) -> None:
    place = desk.run.rename(desk.run.with_name("large-disk"))
    desk.run.symlink_to(place)
    run_heard(desk.run, make_settings(desk.data, seed=4), restart=True)
    assert desk.run.is_symlink()
    assert find_checkpoints(place)


def test_the_space_of_the_old_run_counts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    each = open_run.bytes_of_checkpoint(desk.settings.shape, desk.settings.step_kind)
    free = [4 * each - 1]
    monkeypatch.setattr(open_run.shutil, "disk_usage", lambda _: DiskUsage(10**9, 10**9, free[0]))
    run_heard(desk.run, desk.settings, restart=True)
    free[0] = each - 1
    with pytest.raises(LowtideError, match="checkpoints need"):
        run_heard(desk.run, desk.settings, restart=True)
    assert tensors_of(desk.run)
    last_only = replace(desk.settings, checkpoint_every=0)
    with pytest.raises(
        LowtideError, match="checkpoints need"
    ):  # the old one goes only when it stands
        run_heard(desk.run, last_only, restart=True)


def test_the_old_run_is_gone_as_soon_as_the_new_one_has_a_checkpoint(desk: Desk) -> None:
    left = []

    def listen(event: Event) -> None:
        if isinstance(event, Stepped | Saved):
            left.append((type(event), bool(list(desk.run.rglob(".replaced")))))

    settings = make_settings(desk.data, seed=4, steps=9, checkpoint_every=3, evaluate_every=0)
    train(desk.run, settings, restart=True, listen=listen)
    assert left[:4] == [(Stepped, True)] * 3 + [(Saved, False)]


def test_a_start_that_came_to_nothing_blocks_no_other(tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    data = make_tokens(tmp_path / "tokens")
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "run", fail)
        with pytest.raises(LowtideError, match="the disk broke"):
            run_heard(tmp_path / "run", make_settings(data, seed=7))
    (tmp_path / "run" / "tokenizer").mkdir()
    (tmp_path / "run" / "tokenizer" / "of-other-data").touch()
    result, _ = run_heard(tmp_path / "run", make_settings(data, seed=0))
    assert result.state.step == 24
    assert not (tmp_path / "run" / "tokenizer").exists()


def test_checkpoints_of_nobody_knows_what_are_refused(desk: Desk) -> None:
    (desk.run / "lowtide-run.json").unlink()
    with pytest.raises(LowtideError, match="which says what they are of, is gone"):
        run_heard(desk.run, make_settings(desk.data, steps=24, learning_rate=0.5))
    assert tensors_of(desk.run)


def test_a_run_that_skipped_nearly_everything_is_no_success(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = make_tokens(tmp_path / "tokens")
    settings = make_settings(data, steps=12, learning_rate=1e30, warmup_steps=0)
    plan = write_plan(tmp_path / "plan.toml", settings)
    ended = call(capsys, "train", data, "--plan", plan, "--out", tmp_path / "run", "--quiet")
    assert ended.code == 1
    assert "of 12 steps were not finite" in ended.problem
    assert len(told_of(tmp_path / "run")) == 12
    assert (tmp_path / "run" / LOG_NAME).exists()


@pytest.mark.slow
def test_whoever_read_along_may_go_away(tmp_path: Path) -> None:
    """`lowtide train … 2>&1 | head -1`: the reader is gone, and the run goes on to its end."""
    data = make_tokens(tmp_path / "tokens")
    plan = write_plan(tmp_path / "plan.toml", make_settings(data, checkpoint_every=1))
    words = ["-m", "lowtide", "train", data, "--plan", plan, "--out", tmp_path / "run"]
    with subprocess.Popen(
        [sys.executable, *map(str, words)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.stderr.close()
        assert process.wait(300) == 0
    assert step_of(find_checkpoints(tmp_path / "run")[-1]) == 24


@pytest.mark.slow
def test_no_stderr_at_all_is_no_reason_not_to_train(tmp_path: Path) -> None:
    data = make_tokens(tmp_path / "tokens")
    plan = write_plan(tmp_path / "plan.toml", make_settings(data, steps=2))
    words = f"{sys.executable} -m lowtide train {data} --plan {plan} --out {tmp_path / 'run'} 2>&-"
    done = subprocess.run(["/bin/sh", "-c", words], stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
    assert find_checkpoints(tmp_path / "run")
