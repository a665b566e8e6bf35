"""Text that is not Unicode, NUL and closed files, wherever a person can put them: never a fault of lowtide."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pyarrow as pa
import pytest

from lowtide import TokenizerSettings, TokenizeSettings, inspect, sample, tokenize, train_tokenizer
from lowtide.cli.main import cli
from lowtide.errors import UsageError
from lowtide.model.gpt import GPT
from tests import commands
from tests.commands import LOWTIDE, Outcome, lowtide
from tests.runs import TINY, add_checkpoint, begin_run

HOSTILE = ("\udcff", "a\udcffb", "\ud800", "a\0b", "\0", "", " ", "\n", "~\udcff/x")
"""Bytes that are not UTF-8 as the shell passes them, halves of surrogate pairs, and NUL, as in TOML."""
EXIT_CODES = (0, 1, 2, 3, 4, 75, 130)
CALLS: dict[str, tuple[str, ...]] = {
    "demo": ("--memory", "1KiB"),
    "train-tokenizer": ("a.txt", "--out", "vocabulary", "--vocab-size", "300", "--restart"),
    "tokenize": ("a.txt", "--out", "out", "--restart", "--val", "0"),
    "plan": ("tokens", "--gpu", "RTX 4070", "--context", "16"),
    "train": ("tokens", "--out", "new", "--model", "gpt2", "--memory", "1MiB"),
    "sample": ("run", "--prompt", "some words", "--count", "2"),
    "inspect": ("tokens",),
    "verify": ("tokens",),
    "export": ("tokens", "--to", "nanogpt", "--out", "nano"),
    "report": ("tokens",),
    "watch": ("--timeline", "timeline.jsonl", "--", "true"),
    "why": ("tokens",),
    "compare": ("a.txt", "--limit", "1KiB", "--programs", "list", "--timeout", "0.01"),
    "doctor": ("--quick",),
    "config": (),
    "completion": ("bash",),
}
"""A short call of each command, to put hostile values into."""
SILENT = ("demo", "train", "compare", "watch")
"""Whose short calls end before they print a result."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Something for each command to work on."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "a.txt").write_text("\n\n".join(f"document {n}: some words" for n in range(50)))
    words = ("tokenize", "a.txt", "--out", "tokens", "--separator", "blank-line", "--val", "0.1")
    assert lowtide(*words, cwd=folder).code == 0
    add_checkpoint(begin_run(folder / "run"), GPT(TINY), 3)
    return folder


def assert_told(done: Outcome) -> None:
    """It worked, or it ended with a problem and a hint, and not by a fault of ours."""
    assert done.code in EXIT_CODES
    assert "fault of lowtide" not in done.err, done.err
    assert "Traceback" not in done.err, done.err
    if done.code:
        assert done.problem
        assert done.hint


def calls_with(command: click.Command, value: str) -> Iterator[tuple[str, ...]]:
    """The command's call with the value in one of its parameters, each in turn."""
    call = CALLS[str(command.name)]
    given = call.index("--") if "--" in call else len(call)
    for one in command.params:
        if isinstance(one, click.Argument):
            yield value, *call[1:]
        elif not one.is_flag:
            yield *call[:given], one.opts[-1], value, *call[given:]


@pytest.mark.slow  # several hundred calls
@pytest.mark.parametrize("name", cli.commands)
def test_every_option_takes_or_refuses_any_text(folder: Path, name: str) -> None:
    for value in HOSTILE:
        for call in calls_with(cli.commands[name], value):
            assert_told(lowtide(name, *call, cwd=folder))


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "c" * 5000])
def test_a_path_that_no_file_can_have_is_refused_from_python(name: str, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("some words")
    calls = (
        lambda: tokenize(name, tmp_path / "out"),
        lambda: tokenize(text, name),
        lambda: train_tokenizer(text, name),
        lambda: inspect(name),
        lambda: sample(name, "Once"),
    )
    for call in calls:
        with pytest.raises(UsageError):
            call()


PLACELESS = (
    ("tokenize", "", "--out", "out"),
    ("tokenize", "a.txt", "--out", ""),
    ("tokenize", "c" * 5000, "--out", "out"),
    ("train-tokenizer", "", "--out", "out"),
    ("inspect", ""),
    ("why", "--kernel-log", ""),
)


@pytest.mark.parametrize("words", PLACELESS)
def test_an_empty_or_too_long_path_is_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("some words")
    refused = commands.call(capsys, *words)
    assert refused.code == 2
    assert "--out" not in refused.hint
    assert not Path("out").exists()


@pytest.mark.parametrize("learn", [tokenize, train_tokenizer])
def test_a_memory_in_bytes_is_taken(learn: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words to learn\n" * 100)
    learn(tmp_path / "a.txt", tmp_path / "out", memory=256 << 20)
    assert list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("wrong", [{"memory": 0.5}, {"workers": "2"}, {"val": "0.1"}])
@pytest.mark.parametrize(
    ("learn", "settings"), [(tokenize, TokenizeSettings), (train_tokenizer, TokenizerSettings)]
)
def test_a_value_of_another_type_is_refused(
    learn: Callable[..., object],
    settings: Callable[..., object],
    wrong: dict[str, object],
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("some words")
    given = dict(wrong)
    named = {"val": given.pop("val")} if "val" in given else {}
    with pytest.raises(UsageError):
        learn(tmp_path / "a.txt", tmp_path / "out", settings(**named), **given)


@pytest.mark.parametrize("key", ["out", "template", "tokenizer", "column", "separator"])
def test_nul_in_a_settings_file_is_told(folder: Path, tmp_path: Path, key: str) -> None:
    settings = tmp_path / "lowtide.toml"
    settings.write_text(f'[tokenize]\n{key} = "a\\u0000b"\n')
    out = () if key == "out" else ("--out", tmp_path / "out")
    assert_told(lowtide("--config", settings, "tokenize", folder / "a.txt", *out))


@pytest.mark.parametrize("key", ["data", "init", "model", "device"])
def test_nul_in_a_plan_is_told(folder: Path, tmp_path: Path, key: str) -> None:
    plan = tmp_path / "plan.toml"
    made = ("plan", folder / "tokens", "--gpu", "RTX 4070", "--model", "gpt2", "--context", "16")
    assert lowtide(*made, "--write", plan).code == 0
    lines = [line for line in plan.read_text().splitlines() if not line.startswith(f"{key} =")]
    plan.write_text("\n".join([f'{key} = "a\\u0000b"', *lines]))
    words = ("train", folder / "tokens", "--out", tmp_path / "run", "--memory", "1MiB")
    assert_told(lowtide(*words, "--plan", plan))


@pytest.mark.slow  # a process for each command: what is left in a buffer is written at its end
@pytest.mark.skipif(sys.platform != "linux", reason="a device that is always full")
@pytest.mark.parametrize("name", [name for name in CALLS if name not in SILENT])
def test_a_full_disk_behind_standard_output_is_told(folder: Path, name: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*LOWTIDE, name, *CALLS[name]], cwd=folder, stdout=full, stderr=-1, check=False
        )
    assert done.returncode == 1
    assert_told(Outcome(code=done.returncode, out="", err=done.stderr.decode()))


@pytest.mark.parametrize("indices", [[0, 1, 7], [0, -3, 1], [0, 2**31 - 1, 1]])
@pytest.mark.parametrize("policy", ["fail", "skip", "replace"])
def test_indices_beyond_an_arrow_dictionary_are_told(
    tmp_path: Path, indices: list[int], policy: str
) -> None:
    words = pa.array(["alpha words", "beta words"])
    column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), words, safe=False)
    path = tmp_path / "a.arrow"
    batch = pa.record_batch([column], names=["text"])
    with pa.ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(batch)
    done = lowtide("tokenize", path, "--out", tmp_path / "out", "--bad-text", policy)
    assert_told(done)
    assert done.code == 1
    assert str(path) in done.problem
