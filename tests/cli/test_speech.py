"""Results on stdout, talk on stderr; two lines for an error; a bar only where it can be taken back."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.commands import LOWTIDE, call, lowtide, lowtide_process

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(*arguments: str | Path, env: Mapping[str, str]) -> tuple[int, str, str]:
    """Run with a terminal as stderr: the exit code, stdout, and every byte the terminal got."""
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [*LOWTIDE, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "COLUMNS": "80", **env},
        text=True,
    ) as process:
        os.close(terminal)
        said = b""
        while True:
            try:
                part = os.read(master, 65_536)
            except OSError:  # Linux: the other side is closed
                break
            if not part:
                break
            said += part
        os.close(master)
        assert process.stdout is not None
        out = process.stdout.read()
    return process.returncode, out, said.decode()


def screen(said: str) -> list[str]:
    """What a terminal shows in the end, of the few commands that a bar uses."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", said):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part[0] not in "\r\x1b":
            lines[row] += part
    return [line for line in lines if line]


def test_an_error_is_two_lines_and_debug_shows_where(tmp_path: Path) -> None:
    command = ("tokenize", tmp_path / "nowhere.txt", "--out", tmp_path / "out")
    plain = lowtide(*command)
    assert plain.code == 2
    assert re.fullmatch(r"error: .*nowhere\.txt does not exist\nhint: .+\n", plain.err)
    for place in (("--debug", *command), (*command, "--debug")):
        told = lowtide(*place)
        assert told.code == 2
        assert "Traceback (most recent call last)" in told.err
        assert told.err.endswith(plain.err)


def test_a_fault_of_our_own_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("lowtide.stages.examine.inspect", fall)
    told = call(capsys, "inspect", "anything")
    assert told.code == 1
    assert told.problem == "ZeroDivisionError: a fault"
    assert "--debug" in told.hint


def test_results_go_to_stdout_and_talk_to_stderr(corpus: Path, tmp_path: Path) -> None:
    done = lowtide("tokenize", corpus, "--out", tmp_path / "out")
    assert done.code == 0
    assert "folder" in done.out
    assert "(measured)" in done.out
    assert "note:" not in done.out
    assert done.err
    assert all(line.startswith("note: ") for line in done.err.splitlines())


def test_quiet_says_nothing_beside_the_result(corpus: Path, tmp_path: Path) -> None:
    command = ("tokenize", corpus, "--separator", "line", "--quiet", "--out", tmp_path / "out")
    done = lowtide(*command)
    assert (done.code, done.err) == (0, "")
    assert done.out


def test_json_is_one_object_with_a_version(
    capsys: pytest.CaptureFixture[str], corpus: Path, dataset: Path, tmp_path: Path
) -> None:
    tokenize = ("tokenize", corpus, "--separator", "line", "--out", tmp_path / "out", "--json")
    answers = {
        "dry run": call(capsys, *tokenize, "--dry-run"),
        "tokenize": lowtide(*tokenize),
        "again": call(capsys, *tokenize),
        "inspect": lowtide("inspect", dataset, "--json"),
        "verify": lowtide("verify", dataset, "--json"),
        "export": call(
            capsys, "export", dataset, "--to", "megatron", "--out", tmp_path / "m", "--json"
        ),
    }
    for name, answer in answers.items():
        assert answer.code == 0, (name, answer.err)
        assert answer.json["schema_version"] == 1, name
    counts = {name: answers[name].json["tokens"] for name in ("tokenize", "again", "export")}
    assert len(set(counts.values())) == 1, counts
    assert answers["again"].json["already_done"] is True
    assert answers["verify"].json["sound"] is True


def test_a_folder_whose_name_is_no_text_is_still_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    command = ("tokenize", tmp_path / "a.txt", "--out", folder)
    assert lowtide(*command).code == 0
    assert lowtide(*command, "--json").json["folder"] == folder


def test_samples_are_shown_as_they_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("中文 é\n\x1b[31m")
    assert lowtide("tokenize", tmp_path / "a.txt", "--out", tmp_path / "out").code == 0
    assert r"中文 é\n\x1b[31m" in lowtide("inspect", tmp_path / "out").out
    narrow = lowtide_process("inspect", tmp_path / "out", env={"PYTHONIOENCODING": "latin-1"})
    assert narrow.code == 0
    assert r"\u4e2d\u6587" in narrow.out


def test_counts_of_one_are_singular(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello there")
    tokenize = ("tokenize", tmp_path / "a.txt", "--out", tmp_path / "out")
    told = call(capsys, *tokenize, "--dry-run").out + call(capsys, *tokenize).out
    told += call(capsys, "inspect", tmp_path / "out").out
    assert "1 document" in told
    assert not re.search(r"\b1 (documents|files|tokens|problems)\b", told)


def test_elsewhere_than_on_a_terminal_lines_are_plain(corpus: Path, tmp_path: Path) -> None:
    done = lowtide("tokenize", corpus, "--out", tmp_path / "out", env={"FORCE_COLOR": "1"})
    assert done.code == 0
    assert "\x1b" not in done.out + done.err
    assert "\r" not in done.out + done.err


@pytest.mark.parametrize("env", [{"TERM": "xterm-256color"}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_on_a_terminal_a_bar_is_shown_and_gone_afterwards(
    corpus: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    code, out, said = on_a_terminal("tokenize", corpus, "--out", tmp_path / "out", env=env)
    assert code == 0
    if "NO_COLOR" not in env:  # without colours, what is empty of a bar is blank
        assert "━" in said
    assert re.search(r" of \d+\.\d MiB, .*tokens", said)
    assert all(line.startswith("note: ") for line in screen(said)), screen(said)
    assert "\x1b" not in out
    if "NO_COLOR" in env:
        assert not COLOUR.search(said)


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(corpus: Path, tmp_path: Path) -> None:
    command = ("tokenize", corpus, "--out", tmp_path / "out")
    code, _, said = on_a_terminal(*command, env={"TERM": "dumb"})
    assert code == 0
    assert all(line.startswith("note: ") for line in said.splitlines())


def test_a_reader_that_goes_away_is_no_fault(dataset: Path) -> None:
    with subprocess.Popen(
        [*LOWTIDE, "inspect", str(dataset)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
