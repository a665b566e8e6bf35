"""`lowtide plan` answers at once, without torch, and what it advises works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.dataset.token_dataset import TokenDataset
from lowtide.model.shape import SHAPES
from lowtide.plan.plan_file import read_plan
from tests.commands import call, lowtide
from tests.machine_speed import slowness
from tests.training.small_examples import make_examples, write

Capsys = pytest.CaptureFixture[str]
CPU_SECONDS = 0.5
PROBE = """
import json, sys, time
from lowtide.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as left:
    print(json.dumps({"code": left.code, "seconds": time.process_time(), "modules": list(sys.modules)}))
"""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """14 billion tokens of nanoGPT's kind, in files that are all hole."""
    folder = tmp_path_factory.mktemp("story")
    for name, tokens in (("train", 14_000_000_000), ("val", 7_000_000)):
        with (folder / f"{name}.bin").open("wb") as file:
            file.truncate(2 * tokens)
    return folder


def test_it_answers_in_half_a_second_and_loads_neither_torch_nor_pyarrow(dataset: Path) -> None:
    command = [sys.executable, "-c", PROBE, "plan", str(dataset), "--gpu", "4070"]
    answers = []
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    assert answers[0]["code"] == 0
    loaded = {name.partition(".")[0] for name in answers[0]["modules"]}
    assert not loaded & {"torch", "pyarrow", "rich", "gigatoken", "tiktoken"}
    assert min(answer["seconds"] for answer in answers) < CPU_SECONDS * slowness()


def test_every_model_stands_in_the_table_with_what_it_needs(capsys: Capsys, story: Path) -> None:
    told = call(capsys, "plan", story, "--gpu", "RTX 4070")
    assert told.code == 0
    rows = {line.split()[0]: line for line in told.out.splitlines() if line.strip()}
    assert set(SHAPES) <= set(rows)
    assert "does not fit" in rows["gpt2-xl"]
    assert "gpt2:" in rows["choice"]
    for part in ("weights", "gradients", "optimizer", "activations", "logits", "slack,"):
        assert part in rows, part
    assert "(assumed" in rows["time"]
    assert "(predicted)" in rows["memory"]
    assert max(map(len, told.out.splitlines()[3:12])) <= 112


def test_json_holds_every_figure_on_one_line(capsys: Capsys, story: Path) -> None:
    found = call(capsys, "plan", story, "--gpu", "RTX 4070", "--json").json
    assert found["chosen"] == "gpt2"
    assert [one["name"] for one in found["models"]] == list(SHAPES)  # type: ignore[attr-defined]
    chosen = next(one for one in found["models"] if one["name"] == "gpt2")  # type: ignore[attr-defined]
    assert sum(chosen["memory_bytes"].values()) == chosen["peak_bytes"]
    assert chosen["peak_bytes"] <= found["machine"]["budget_bytes"]  # type: ignore[index]


def test_the_plan_is_written_and_read_back(capsys: Capsys, story: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    told = call(capsys, "plan", story, "--gpu", "RTX 4070", "--write", path, "--json")
    settings = read_plan(path)
    assert settings.model == told.json["chosen"]
    assert settings.data == str(story)
    assert [one.name for one in tmp_path.iterdir()] == ["plan.toml"]


def test_3_when_the_model_does_not_fit_and_the_advice_works(
    capsys: Capsys, story: Path, tmp_path: Path
) -> None:
    command = ("plan", story, "--gpu", "RTX 4070", "--write", tmp_path / "plan.toml")
    refused = call(capsys, *command, "--model", "gpt2-xl")
    assert refused.code == 3
    assert "gpt2-xl needs" in refused.problem
    assert list(tmp_path.iterdir()) == []
    assert call(capsys, *command, *" ".join(refused.advice).split()).code == 0


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--gpu", "RTX 4071"], "names like it: RTX 4070"),
        (["--vram", "1 apple"], "is not a size"),
        (["--gpu", "4070", "--model", "gpt3"], "there is no model 'gpt3'"),
        (["--vram", "12GiB", "--hours", "48"], "how fast"),
        (["--gpu", "4070", "--hours", "-1"], "hours cannot be -1.0"),
        (["--gpu", "4070", "--context", "0"], "context cannot be 0"),
        (["--gpu", "4070", "--context", "9" * 400], "is too large"),
        (["--vram", "9" * 400 + "GiB"], "is too large"),
        (["--gpu", "4070", "--write", "."], "not a file to be replaced"),
    ],
)
def test_2_when_the_question_is_wrong(
    capsys: Capsys, story: Path, flags: list[str], problem: str
) -> None:
    refused = call(capsys, "plan", story, *flags)
    assert refused.code == 2
    assert problem in refused.problem


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes with names")
def test_only_files_are_replaced_and_links_stay(
    capsys: Capsys, story: Path, tmp_path: Path
) -> None:
    command = ("plan", story, "--gpu", "RTX 4070", "--write")
    os.mkfifo(tmp_path / "pipe")
    assert call(capsys, *command, tmp_path / "pipe").code == 2
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "plan.toml")
    assert call(capsys, *command, tmp_path / "link").code == 0
    assert (tmp_path / "link").is_symlink()
    assert "batch_tokens" in (tmp_path / "plan.toml").read_text()


def test_data_that_is_none_is_told_apart(capsys: Capsys, tmp_path: Path) -> None:
    assert "does not exist" in call(capsys, "plan", tmp_path / "nowhere").problem
    (tmp_path / "a.txt").write_text("some text\n")
    assert "lowtide tokenize" in call(capsys, "plan", tmp_path / "a.txt").hint


def test_data_without_val_holds_some_out(capsys: Capsys, tmp_path: Path) -> None:
    with (tmp_path / "train.bin").open("wb") as file:
        file.truncate(2 * 10_000_000)
    found = call(capsys, "plan", tmp_path, "--gpu", "4070", "--json").json
    assert found["settings"]["val_fraction"] == 0.005  # type: ignore[index]
    told = call(capsys, "plan", tmp_path, "--gpu", "4070").out
    assert (
        "10.0M tokens, 50.0k of them to be held out" in told
    )  # what the file has, and what is taken off


def test_on_a_machine_without_a_gpu_the_cpu_is_planned_for(dataset: Path, tmp_path: Path) -> None:
    told = lowtide("plan", dataset, "--context", "256", env={"PATH": str(tmp_path)})
    assert told.code == 0, told.err
    assert "the CPU" in told.out
    assert "no GPU found here" in told.out


def test_an_epoch_of_examples_has_their_windows(capsys: Capsys, tmp_path: Path) -> None:
    """Padded windows are more than their tokens would fill."""
    data = write(tmp_path / "examples", make_examples([11] * 60), make_examples([11] * 9))
    found = call(capsys, "plan", data, "--context", "16", "--model", "gpt2-pico", "--json").json
    windows = TokenDataset(data, context=16, windows="document").window_count
    settings, models = found["settings"], found["models"]
    steps = -(-windows * 16 // settings["batch_tokens"])  # type: ignore[index]
    assert windows * 16 > 1.3 * TokenDataset(data, context=16).tokens
    assert models[0]["epoch_steps"] == steps  # type: ignore[index]
    assert settings["steps"] == pytest.approx(4 * steps, abs=4)  # type: ignore[index]
