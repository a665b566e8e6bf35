"""`lowtide.toml` gives defaults: a flag wins over it, and what cannot be meant is told by file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import Outcome, call, lowtide, manifest_of

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with two lines of text in a.txt."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("one tide\nanother tide\n")
    return tmp_path


def tokenize(capsys: Captured, toml: str, *more: str) -> Outcome:
    """`lowtide tokenize a.txt --out out` in a folder with such a file."""
    Path("lowtide.toml").write_text(toml)
    return call(capsys, "tokenize", "a.txt", "--out", "out", *more)


def settings_of(folder: str) -> dict[str, object]:
    found = manifest_of(Path(folder))["settings"]
    assert isinstance(found, dict)
    return found


def test_a_setting_counts_and_is_told_and_a_flag_wins(here: Path, capsys: Captured) -> None:
    toml = '[tokenize]\nseparator = "line"\nshard_tokens = 5000\nbad-text = "skip"\n'
    done = tokenize(capsys, toml, "--bad-text", "replace")
    assert done.code == 0
    notes = [line for line in done.err.splitlines() if "lowtide.toml" in line]
    assert notes == ["note: settings from lowtide.toml: separator = line, shard-tokens = 5000"]
    made = settings_of("out")
    assert (made["separator"], made["shard_tokens"], made["bad_text"]) == ("line", 5000, "replace")


def test_another_file_may_be_named(here: Path, capsys: Captured) -> None:
    Path("lowtide.toml").write_text('[tokenize]\nseparator = "line"\n')
    Path("other.toml").write_text('[tokenize]\nout = "there"\nformat = "nanogpt"\n')
    done = call(capsys, "--config", "other.toml", "tokenize", "a.txt")
    assert done.code == 0
    assert "other.toml" in done.err
    made = settings_of("there")
    assert (made["format"], made["separator"]) == ("nanogpt", "file")
    absent = call(capsys, "--config", "nowhere.toml", "tokenize", "a.txt")
    assert (absent.code, absent.problem) == (2, "nowhere.toml does not exist")


def test_quiet_and_json_stay_clean(here: Path, capsys: Captured) -> None:
    toml = '[tokenize]\nseparator = "line"\n'
    assert tokenize(capsys, toml, "--quiet").err == ""
    assert tokenize(capsys, toml, "--json").json["already_done"] is True
    assert tokenize(capsys, toml + "quiet = true\n").err == ""


def test_several_values_are_a_list(here: Path, capsys: Captured) -> None:
    toml = '[train_tokenizer]\nvocab-size = [300, "0.4k"]\nspecial-token = ["<|a|>", "<|b|>"]\n'
    Path("lowtide.toml").write_text(toml)
    done = call(capsys, "train-tokenizer", "a.txt", "--out", "mine", "--json")
    assert done.code == 0
    found = (Path("mine") / "lowtide-tokenizer.json").read_text()
    assert "<|a|>" in found
    assert "<|b|>" in found
    assert {path.name for path in Path("mine").iterdir()} >= {"300", "400"}
    Path("lowtide.toml").write_text('[train-tokenizer]\nspecial-token = "<|one|>"\n')
    one = call(capsys, "train-tokenizer", "a.txt", "--vocab-size", "300", "--out", "one")
    assert one.code == 0
    assert "<|one|>" in (Path("one") / "tokenizer.json").read_text()


@pytest.mark.parametrize(
    ("toml", "problem", "hint"),
    [
        ("[tokenise]\n", "a table [tokenise], and there is no such command", "[tokenize]"),
        ("[tokenize]\nmemry = 1\n", "memry in [tokenize] is not a setting", "did you mean memory?"),
        ("[train]\nmemry = 1\n", "memry in [train] is not a setting", "did you mean memory?"),
        ("[tokenize]\nsteps = 1\n", "steps in [tokenize] is not a setting", "a setting of [train]"),
        ("[tokenize]\nval = 'x'\n", "val in [tokenize]: 'x' is not a share", "correct that line"),
        ("[tokenize]\nval = true\n", "val in [tokenize] is true", "a number"),
        ("[tokenize]\nval = {a = 1}\n", "val in [tokenize] is neither", "a number"),
        ("[tokenize]\nval = [1]\n", "val in [tokenize] is a list", "one value"),
        ("[tokenize]\nformat = 'npz'\n", "format in [tokenize]: 'npz' is not one of", "correct"),
        ("[tokenize]\nmemory = 5\n", "memory in [tokenize]: '5' is not a size", "correct"),
        ("[tokenize]\nworkers = 1.5e20\n", "workers in [tokenize]:", "correct that line"),
        ("[tokenize]\nquiet = 'yes'\n", "quiet in [tokenize] is 'yes'", "true or false"),
        ("[tokenize]\nval = 0\nval-x = 0\n", "val-x in [tokenize]", "did you mean val?"),
        ("[tokenize]\nbad-text='fail'\nbad_text='fail'\n", "bad_text in [tokenize]", "remove one"),
        ("[tokenize]\nrestart = true\n", "every run would remove", "pass `--restart`"),
        ("[tokenize]\ndry-run = true\n", "no run would do anything", "pass `--dry-run`"),
        ("[watch]\non-alert = 'ls'\n", "it starts a program", "pass `--on-alert`"),
        ("[train]\nwandb = 'mine'\n", "it sends data out", "pass `--wandb`"),
        ("[tokenize]\njson = true\n", "has no place in a file", "pass `--json`"),
        ("[config]\nout = 'x'\n", "[config], and that command takes no settings", "remove it"),
        ("x = 1\n[tokenize]\n", "sets x outside of any table", "such as [tokenize]"),
        ("[tokenize\n", "cannot be read as TOML", "--config FILE"),
    ],
)
def test_what_cannot_be_meant_is_told_by_file_and_key(
    here: Path, capsys: Captured, toml: str, problem: str, hint: str
) -> None:
    refused = tokenize(capsys, toml)
    assert refused.code == 2
    assert refused.problem.startswith("lowtide.toml")
    assert problem in refused.problem
    assert hint in refused.hint
    assert not Path("out").exists()


def test_a_value_that_the_command_itself_refuses_is_told_by_the_file(
    here: Path, capsys: Captured
) -> None:
    refused = tokenize(capsys, "[tokenize]\nval = 2\n")
    assert refused.code == 2
    assert refused.problem.startswith("val cannot be 2.0")
    assert "--val is set by lowtide.toml" in refused.problem
    assert "`--val 0.0005`" in refused.hint


def test_help_is_given_with_any_file_and_never_depends_on_it(here: Path, capsys: Captured) -> None:
    plain = call(capsys, "tokenize", "--help").out
    for toml in ("[tokenize", "[tokenize]\nmemry = 1\n", "[tokenize]\nval = 0.25\n"):
        Path("lowtide.toml").write_text(toml)
        assert call(capsys, "tokenize", "--help").out == plain
    Path("lowtide.toml").write_text("[tokenize")
    assert "cannot be read" in call(capsys, "tokenize").problem  # before the missing argument
    assert call(capsys, "config", "--out", "-").code == 0


def test_the_file_of_an_inbox_is_left_alone(here: Path, capsys: Captured) -> None:
    toml = 'examples = "chat"\ntoo-long = "skip"\nval = 0.1\nmarker = ".done"\n'
    done = tokenize(capsys, toml)
    assert done.code == 0
    assert "lowtide.toml" not in done.err
    assert settings_of("out")["val"] != 0.1
    loose = tokenize(capsys, 'memory = "1GiB"\n')
    assert loose.code == 0
    assert "lowtide.toml is not used: memory stands outside of any table" in loose.err
    Path("inbox.toml").write_text(toml)
    assert call(capsys, "--config", "inbox.toml", "verify", "out").code == 2


def test_what_has_no_use_here_makes_nothing_fail(here: Path, capsys: Captured) -> None:
    of_examples = '[tokenize]\nlearn = "all"\ncontext = 64\ntoo-long = "skip"\ntemplate = "plain"\n'
    done = tokenize(capsys, of_examples)
    assert done.code == 0
    assert "settings from" not in done.err
    Path("lowtide.toml").write_text("[export]\nstep = 3\nshard-tokens = 1000\n")
    exported = call(capsys, "export", "out", "--to", "npy", "--out", "npy")
    assert exported.code == 0
    assert "settings from lowtide.toml: shard-tokens = 1000\n" in exported.err


def test_what_has_a_use_is_used(here: Path, capsys: Captured) -> None:
    rows = '{"instruction": "Say tide.", "output": "tide"}\n' * 20
    Path("rows.jsonl").write_text(rows)
    Path("lowtide.toml").write_text('[tokenize]\nlearn = "all"\ncontext = 64\nseparator = "line"\n')
    done = call(
        capsys, "tokenize", "rows.jsonl", "--examples", "instruction", "--out", "made", "--val", "0"
    )
    assert done.code == 0, done.err
    made = settings_of("made")
    assert (made["learn"], made["context"], made["separator"]) == ("all", 64, "file")


def test_the_command_line_wins_over_what_would_contradict_it(here: Path, capsys: Captured) -> None:
    Path("lowtide.toml").write_text("[train-tokenizer]\nno-special-token = true\n")
    command = ("train-tokenizer", "a.txt", "--vocab-size", "300", "--out", "mine")
    assert call(capsys, *command, "--special-token", "<|a|>").code == 0


def test_training_on_named_data_forgets_the_inbox_of_the_file(here: Path, capsys: Captured) -> None:
    pytest.importorskip("torch")
    toml = '[train]\ninbox = "batches"\nuntil-empty = true\nout = "run"\nsteps = 3\n'
    Path("lowtide.toml").write_text(toml)
    assert call(capsys, "train", "nowhere").problem == "nowhere does not exist"
    assert call(capsys, "train").problem == "an inbox has no last step"
    Path("lowtide.toml").write_text(toml.replace("steps = 3\n", ""))
    assert call(capsys, "train").problem == "batches is not a folder"


def test_one_rank_of_several_tells(here: Path) -> None:
    Path("lowtide.toml").write_text('[verify]\ntokenizer = "gpt2"\n')
    assert "settings from" in lowtide("verify", "nowhere", env={"RANK": "0"}).err
    assert "settings from" not in lowtide("verify", "nowhere", env={"RANK": "1"}).err
