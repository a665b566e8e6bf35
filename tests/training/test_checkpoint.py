"""A checkpoint is absent or whole, holds all that a run needs, and never costs an older one its life."""

from __future__ import annotations

import errno
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import load_file

from lowtide.errors import LowtideError, StorageError, UsageError, VerificationError
from lowtide.model.gpt import GPT
from lowtide.model.needs import StepKind, bytes_of_checkpoint
from lowtide.storage.sealed_json import JsonObject
from lowtide.training import checkpoint as room
from lowtide.training.checkpoint import (
    RunState,
    find_checkpoints,
    load_checkpoint,
    load_model,
    open_weights,
    prune,
    remove_partial,
    step_of,
    write_checkpoint,
)
from lowtide.training.optimizer import make_optimizer
from lowtide.training.step import take_step
from lowtide.training.watch_loss import WatchState
from tests.model.small import batch, lively
from tests.training.small_runs import SHAPE, hidden_in, make_settings

SETTINGS = make_settings(Path("somewhere"))
LOADER: JsonObject = {"version": 1, "position": 24, "stream": {"seed": 0}}
PARTS = ("model.safetensors", "optimizer.safetensors", "state.json")


def trained(steps: int = 3, seed: int = 0) -> tuple[GPT, torch.optim.Optimizer]:
    model = lively(SHAPE, seed=seed)
    optimizer = make_optimizer(model, SETTINGS)
    for step in range(steps):
        take_step(model, optimizer, SETTINGS, step, batch(SHAPE, seed=step))
    return model, optimizer


def save(run: Path, step: int, seed: int = 0) -> Path:
    state = RunState(step=step, loader=LOADER, best_loss=2.5, best_step=1)
    return write_checkpoint(run, *trained(seed=seed), state)


def names(run: Path) -> list[int]:
    return [step_of(one) for one in find_checkpoints(run)]


def test_what_is_loaded_goes_on_as_what_was_saved(tmp_path: Path) -> None:
    model, optimizer = trained()
    path = write_checkpoint(
        tmp_path, model, optimizer, RunState(step=3, loader=LOADER, skipped_steps=1)
    )
    other = GPT(SHAPE)
    other_optimizer = make_optimizer(other, SETTINGS)
    state = load_checkpoint(path, other, other_optimizer)
    assert state == RunState(
        step=3, loader=LOADER, loss_watch=asdict(WatchState()), skipped_steps=1
    )
    for one, its_optimizer in ((model, optimizer), (other, other_optimizer)):
        take_step(one, its_optimizer, SETTINGS, 3, batch(SHAPE, seed=3))
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_the_files_open_with_the_safetensors_library_and_have_the_size_foretold(
    tmp_path: Path,
) -> None:
    model, optimizer = trained()
    path = write_checkpoint(tmp_path, model, optimizer, RunState(step=1, loader={}))
    found = load_file(path / "model.safetensors")
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(found[name], one) for name, one in model.named_parameters())
    moments = load_file(path / "optimizer.safetensors")
    assert moments["final_norm.bias.step"].item() == 3
    size = sum(file.stat().st_size for file in path.iterdir())
    assert size <= bytes_of_checkpoint(SHAPE, StepKind()) <= size + (1 << 20)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "empty"])
def test_any_damage_is_found_and_the_one_before_offered(
    tmp_path: Path, name: str, damage: str
) -> None:
    before, hurt = save(tmp_path, 9), save(tmp_path, 10)
    part = hurt / name
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    new = {"flipped": content, "cut": content[:-1], "empty": b""}.get(damage)
    if new is None:
        part.unlink()
    else:
        part.write_bytes(new)
    model = GPT(SHAPE)
    optimizer = make_optimizer(model, SETTINGS)
    with pytest.raises(VerificationError) as found:
        load_checkpoint(hurt, model, optimizer)
    assert str(part) in found.value.problem
    assert found.value.remedy == f"remove {hurt} to go on from {before.name}"
    assert load_checkpoint(before, model, optimizer).step == 9


def test_a_lonely_damaged_checkpoint_says_how_to_begin_again(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "model.safetensors").unlink()
    with pytest.raises(VerificationError) as found:
        load_model(path, GPT(SHAPE))
    assert found.value.remedy == f"remove {path} to begin again"


@pytest.mark.parametrize("at", range(4))
def test_a_full_disk_at_any_write_leaves_the_old_ones_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    save(tmp_path, 1)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    broken = ("write_tensors", "write_tensors", "write_sealed", "publish")[at]
    work, calls = getattr(room, broken), iter([*[False] * (at == 1), True])

    def fail(*arguments: object) -> object:
        if not next(calls):
            return work(*arguments)
        if isinstance(arguments[0], Path) and not arguments[0].exists():
            arguments[0].write_bytes(b"half")  # a write that fails has often begun
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(room, broken, fail)
    with pytest.raises((OSError, LowtideError)):
        save(tmp_path, 2)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept
    assert names(tmp_path) == [1]
    assert hidden_in(tmp_path) == []


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowtide.training import tensor_file

    def full(_number: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_file, "sync_file", full)
    with pytest.raises(StorageError) as told:
        save(tmp_path, 2)
    assert "No space left" in told.value.problem
    assert "free space" in told.value.remedy


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8, 10):
        save(tmp_path, step)
        prune(tmp_path, best_step=4)
    assert names(tmp_path) == [4, 8, 10]
    prune(tmp_path, best_step=10)
    assert names(tmp_path) == [8, 10]
    prune(tmp_path, best_step=None)
    assert names(tmp_path) == [8, 10]


def test_a_kill_while_an_old_one_is_removed_leaves_none_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)

    def killed(folder: Path) -> NoReturn:
        (folder / "model.safetensors").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(room.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune(tmp_path, best_step=None)
    assert names(tmp_path) == [2, 3]
    remove_partial(tmp_path)
    assert hidden_in(tmp_path) == []
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_what_a_killed_run_was_writing_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    (folder / ".step-00000002.4711.tmp").mkdir()
    (folder / ".step-00000002.4711.tmp" / "model.safetensors").write_bytes(b"half")
    (folder / "mine.tmp").touch()
    remove_partial(tmp_path)
    assert sorted(one.name for one in folder.iterdir()) == ["mine.tmp", "step-00000001"]


def test_the_same_step_again_replaces_what_it_was(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = save(tmp_path, 1, seed=8)
    model = GPT(SHAPE)
    load_model(path, model)
    wanted, _ = trained(seed=8)
    assert torch.equal(model.final_norm.bias, wanted.final_norm.bias)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_other_things_are_no_checkpoints(tmp_path: Path) -> None:
    assert find_checkpoints(tmp_path) == []
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000007").touch()
    (tmp_path / "checkpoints" / "step-7").mkdir()
    assert find_checkpoints(tmp_path) == []
    with pytest.raises(UsageError, match="not a checkpoint"):
        step_of(tmp_path)


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    other = SHAPE.with_data(vocabulary_size=SHAPE.vocabulary_size, context=8)
    with pytest.raises(VerificationError, match="another shape"):
        load_model(path, GPT(other))


def test_without_safetensors_the_line_that_brings_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch may have come another way than by the extra; a checkpoint is written without it, and read later."""
    monkeypatch.setitem(sys.modules, "safetensors", None)
    path = save(tmp_path, 3)
    for use in (lambda: load_model(path, GPT(SHAPE)), lambda: open_weights(path)):
        with pytest.raises(UsageError, match="safetensors, which is not installed") as refused:
            use()
        assert "pip install 'lowtide[train]'" in refused.value.remedy
    monkeypatch.undo()
    load_model(path, GPT(SHAPE))
