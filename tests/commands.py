"""Runs `lowtide` as a person would, and keeps what it said: exit code, stdout, stderr."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lowtide.journal import LOG_NAME

LOWTIDE = (sys.executable, "-m", "lowtide")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command left behind on its streams."""

    code: int
    out: str
    err: str

    @property
    def problem(self) -> str:
        """What `error:` says; fails the test when the error is not told in our two parts."""
        return self._parts()[0]

    @property
    def hint(self) -> str:
        """What `hint:` says, always last."""
        return self._parts()[1]

    @property
    def advice(self) -> list[str]:
        """The hint's first quoted flags, ready to be added to the command: `--bad-text skip`."""
        quoted = re.search(r"`(--[^`]*)`", self.hint)
        assert quoted, self.hint
        return quoted[1].split(" ", 1)

    @property
    def json(self) -> dict[str, object]:
        """Stdout, which must be one JSON object on one line."""
        assert self.out.count("\n") == 1, self.out
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    def _parts(self) -> tuple[str, str]:
        assert "Traceback" not in self.err, self.err
        found = re.search(r"^error: (.+)\nhint: (.+)\n\Z", self.err, re.DOTALL | re.MULTILINE)
        assert found, self.err
        return found[1], found[2]


def lowtide(
    *arguments: str | Path,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> Outcome:
    """`python -m lowtide …` in a process of its own."""
    done = subprocess.run(
        [*LOWTIDE, *map(str, arguments)],
        input=stdin,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        preexec_fn=before,
        capture_output=True,
        timeout=300,
        check=False,
    )
    out, err = (said.decode(errors="backslashreplace") for said in (done.stdout, done.stderr))
    return Outcome(code=done.returncode, out=out, err=err)


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Outcome:
    """The same command inside this process: a fifth of the time, for what needs no process of its own."""
    from lowtide.cli.main import main

    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return Outcome(code=left.value.code, out=said.out, err=said.err)


def manifest_of(folder: Path) -> dict[str, object]:
    """`lowtide.json` as it stands on disk."""
    found = json.loads((folder / "lowtide.json").read_text())
    assert isinstance(found, dict)
    return found


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file of a dataset, to compare two runs."""
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != LOG_NAME
    }


def assert_nothing_half_written(folder: Path) -> None:
    """No file bears a final name without being whole: here, no file at all beside work folder and log."""
    if folder.exists():
        assert {path.name for path in folder.iterdir()} <= {".lowtide", LOG_NAME}
        assert list(folder.glob(".lowtide/*.tmp")) == []
