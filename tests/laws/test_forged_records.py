"""A record is data from anywhere: a forged one, seal and all, is refused by its name, never a fault of ours."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lowtide import TokenDataset
from lowtide.errors import VerificationError
from lowtide.stages.export_model import export_model
from lowtide.storage.sealed_json import JsonObject, JsonValue, read_sealed, write_sealed
from lowtide.training.checkpoint import find_checkpoints
from lowtide.training.settings import TrainSettings
from tests.commands import lowtide
from tests.model.small import lively
from tests.runs import TINY, add_checkpoint, begin_run
from tests.training.small_runs import SHAPE, make_settings, make_tokens, run_heard, tensors_of

WRONG: dict[str, list[JsonValue]] = {
    "step": [None, "4", -4, 4.5, True, [4], 3, 5, 10**30],
    "loader": [None, "x", 7, [], {}, {"a": 1}],
    "loader.version": [None, "1", 0, 2, 10**30],
    "loader.position": [None, "8", -1, 1.5, True, [], 33, 1 << 61, 1 << 62, 10**30],
    "loader.stream": [None, "x", 7, [], {}, {"seed": []}],
    "loader.stream.seed": [None, "0", 1, {}],
    "best_loss": ["2", [], {}, True, 10**400],
    "best_step": ["2", -1, 1.5, [], 5, 10**30],
    "loss_watch": [None, "x", 7, []],
    "loss_watch.losses": [None, "x", 7, ["x"], [None], [10**400]],
    "loss_watch.not_finite": [None, 7, ["x"], [-1]],
    "loss_watch.spikes": [None, 7, [1.5], [10**30]],
    "loss_watch.spike_since": ["x", -1, 1.5, []],
    "loss_watch.parts": [
        None,
        [{}],
        [7],
        [{"number": 1, "first_step": 1, "squares": -1.0}],
        [{"number": 1, "first_step": -1}],
    ],
    "loss_watch.told_plateau": [None, "x", -1, 10**30],
    "skipped_steps": [None, "0", -1, 1.5, [], 10**30],
    "owes_evaluation": [None, 7, "x", []],
    "digests": [None, 7, [], {}, {"model.safetensors": 7}],
}
MISSING = ("step", "loader", "loader.position", "loss_watch", "skipped_steps", "digests")
DEEP = b"[" * 100_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens, a whole run, and one of which the last checkpoint is of step 4 of 6."""
    folder = tmp_path_factory.mktemp("forged")
    make_tokens(folder / "data")
    run_heard(folder / "whole", settings_in(folder))
    shutil.copytree(folder / "whole", folder / "run")
    shutil.rmtree(folder / "run/checkpoints/step-00000006")
    return folder


def settings_in(place: Path) -> TrainSettings:
    return make_settings(place / "data", steps=6, checkpoint_every=2, evaluate_every=2)


def forge(payload: JsonObject, name: str, *value: JsonValue) -> JsonObject:
    """With another value at `name`; without one, without it."""
    first, _, rest = name.partition(".")
    inner = payload[first]
    if rest:
        assert isinstance(inner, dict)
        return {**payload, first: forge(inner, rest, *value)}
    kept = {key: one for key, one in payload.items() if key != first}
    return {**kept, first: value[0]} if value else kept


def assert_refused(place: Path, run: Path, change: Callable[[JsonObject], JsonObject]) -> None:
    state = run / "checkpoints/step-00000004/state.json"
    honest = read_sealed(state)
    write_sealed(state, change(honest))
    with pytest.raises(VerificationError) as refused:
        run_heard(run, settings_in(place))
    named = (state, state.with_name("model.safetensors"))  # which a digest does not fit
    assert refused.value.problem.startswith(tuple(map(str, named)))
    assert refused.value.remedy == f"remove {state.parent} to begin again"
    write_sealed(state, honest)


@pytest.mark.parametrize("name", WRONG)
def test_a_forged_state_is_refused_whatever_it_says(place: Path, tmp_path: Path, name: str) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    for value in WRONG[name]:
        assert_refused(place, run, lambda state, value=value: forge(state, name, value))
    if name in MISSING:
        assert_refused(place, run, lambda state: forge(state, name))


def test_a_state_under_another_steps_name_is_refused(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    (run / "checkpoints/step-00000004").replace(run / "checkpoints/step-00000005")
    with pytest.raises(VerificationError) as refused:
        run_heard(run, settings_in(place))
    assert str(run / "checkpoints/step-00000005/state.json") in refused.value.problem


def test_the_remedy_leads_to_the_same_weights(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    assert_refused(place, run, lambda state: forge(state, "skipped_steps", -1))
    shutil.rmtree(run / "checkpoints/step-00000004")
    run_heard(run, settings_in(place))
    assert tensors_of(run) == tensors_of(place / "whole")


def test_a_position_that_leaves_too_little_data_for_the_epochs_is_refused(tmp_path: Path) -> None:
    data = make_tokens(tmp_path / "data")
    windows = TokenDataset(data, context=SHAPE.context).window_count
    settings = make_settings(data, epochs=1.0, steps=-(-windows // 8), checkpoint_every=15)
    run_heard(tmp_path / "run", settings)
    *_, kept, last = find_checkpoints(tmp_path / "run")
    shutil.rmtree(last)
    state = read_sealed(kept / "state.json")
    write_sealed(kept / "state.json", forge(state, "loader.position", windows))
    with pytest.raises(VerificationError):
        run_heard(tmp_path / "run", settings)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one checkpoint, and the same model as transformers has it."""
    folder = tmp_path_factory.mktemp("models")
    add_checkpoint(begin_run(folder / "run"), lively(TINY), 1000)
    export_model(folder / "run", folder / "exported")
    return folder


@pytest.mark.parametrize("content", [DEEP, b'{"a":' + DEEP], ids=["list", "object"])
@pytest.mark.parametrize(
    ("record", "code"),
    [
        ("run/lowtide-run.json", 4),
        ("run/checkpoints/step-00001000/state.json", 4),
        ("run/tokenizer/tokenizer.json", 2),
        ("exported/config.json", 1),
        ("exported/tokenizer.json", 2),
        ("exported/model.safetensors.index.json", 1),
    ],
)
def test_json_nested_too_deeply_is_refused_like_any_other_that_is_broken(
    models: Path, tmp_path: Path, record: str, code: int, content: bytes
) -> None:
    place = shutil.copytree(models, tmp_path / "models")
    if record.endswith("index.json"):
        (place / "exported/model.safetensors").unlink()
    (place / record).write_bytes(content)
    command = ("sample", place / Path(record).parts[0], "--prompt", "a", "--device", "cpu")
    told = lowtide(*command)
    assert told.code == code
    assert Path(record).name in told.problem
    (place / record).write_bytes(b"{")
    assert lowtide(*command).code == code
