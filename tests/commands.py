"""Runs `lowtide` as a person would, and keeps what it said: exit code, stdout, stderr."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, AnyStr

import pytest

from lowtide.journal import LOG_NAME

LOWTIDE = (sys.executable, "-m", "lowtide")
_SAFE_PATH = {"PYTHONSAFEPATH": os.environ.get("PYTHONSAFEPATH", "")}
"""As it was, after a command that sets it for its children: those of tests import from this folder."""


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
        word = "stopped" if self.code in (75, 130) else "error"
        found = re.search(rf"^{word}: (.+)\nhint: (.+)\n\Z", self.err, re.DOTALL | re.MULTILINE)
        assert found, self.err
        return found[1], found[2]


def lowtide(
    *arguments: str | Path,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """The command inside this process, with standard streams that are files, as under a script."""
    from lowtide.cli.main import main

    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        ExitStack() as stack,
    ):
        given.write(stdin)
        given.seek(0)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in {**_SAFE_PATH, **(env or {})}.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        _put_in_place_of_stdin(given, stack)  # text is read from its descriptor
        for name, mode, file in (("stdin", "r", given), ("stdout", "w", out), ("stderr", "w", err)):
            stream = os.fdopen(os.dup(file.fileno()), mode, encoding="utf-8")
            stack.callback(stream.close)
            patch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        sys.stdout.flush()
        sys.stderr.flush()
        assert isinstance(left.value.code, int)
        texts = (_read_again(file) for file in (out, err))
        return Outcome(code=left.value.code, out=next(texts), err=next(texts))


def _put_in_place_of_stdin(file: IO[bytes], stack: ExitStack) -> None:
    saved = os.dup(0)
    stack.callback(os.close, saved)
    stack.callback(os.dup2, saved, 0)
    os.dup2(file.fileno(), 0)


def _read_again(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="backslashreplace")


def lowtide_process(
    *arguments: str | Path,
    stdin: bytes = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> Outcome:
    """`python -m lowtide …` in a process of its own: where limits, signals or children are the subject."""
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


@contextmanager
def killed_on_failure(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """As `with process`, which waits for its end without limit: a test that fails inside would hang."""
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Outcome:
    """The same through pytest's own capture, which is not a file: for what does not look at its streams."""
    from lowtide.cli.main import main

    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _SAFE_PATH.items():
            patch.setenv(name, value)
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


def forbid_removing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Answer as the system does for a file that only another user may remove, which root cannot be shown."""
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == name:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
