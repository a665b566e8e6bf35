"""No child of ours imports from the current folder, which may hold a `json.py` that came with the data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bench.tokenizer_variants import Variant
from lowtide.errors import LowtideError
from lowtide.events import ignore
from lowtide.guard.doctor.check_gpu import ask_torch
from lowtide.settings import TokenizeSettings
from lowtide.stages.inbox.tokenize_apart import tokenize_apart
from lowtide.stages.inbox.tokenize_child import Request
from lowtide.stages.smoke import run_child
from lowtide.tokenizer.reference_apart import ReferenceApart
from lowtide.tokenizer.vocabulary import from_json
from lowtide.tools.compare.programs import PROGRAMS, Task
from lowtide.tools.compare.run_boxed import BoxedJob, run_boxed
from lowtide.tools.demo.stages import DemoSettings, list_stages
from lowtide.units import GIB, MIB
from tests.commands import lowtide_process
from tests.source.examples.rows import template_at

NAMES = (
    *("json", "torch", "numpy", "msgspec", "lowtide", "ctypes", "shutil", "tiktoken", "datasets"),
    *("jinja2", "tokenizers", "struct", "faulthandler"),
)
RUNS = """
import os
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ran"), "w").close()
raise SystemExit(9)
"""
TELLS_ITS_ENVIRONMENT = """
import os, pathlib
pathlib.Path(__file__).with_name("seen").write_text(os.environ["PYTHONSAFEPATH"])
os._exit(9)
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules that leave a mark when they run."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(RUNS)
    monkeypatch.chdir(folder)
    return folder


def _doctor(_folder: Path) -> None:
    ask_torch(
        compiles=False, most_seconds=1
    )  # enough for a `json.py`, and torch itself is not waited for


def _smoke(_folder: Path) -> None:
    with pytest.raises(LowtideError, match="ended with code 1"):  # it asks for settings
        run_child({}, ignore)


def _inbox(folder: Path) -> None:
    asked = Request(
        path=str(folder / "missing.jsonl"),
        out=str(folder / "out"),
        settings=TokenizeSettings(),
        fingerprint="",
        memory="256MiB",
    )
    with pytest.raises(LowtideError):
        tokenize_apart(asked, why_stop=lambda: None, listen=ignore, environment=None)


def _box(folder: Path) -> None:
    job = BoxedJob(
        command=["true"],
        work=folder,
        text_bytes=1,
        environment=os.environ,
        limit_bytes=GIB,
        timeout_seconds=60,
    )
    found = run_boxed(job, None)
    assert found.ending == "finished"


def _template(folder: Path) -> None:
    (folder.parent / "t.jinja").write_text("{{ messages }}")
    template_at(folder.parent / "t.jinja").close()


def _reference(_folder: Path) -> None:
    vocabulary = from_json(Variant().content(), name="mine")
    with closing(ReferenceApart(vocabulary, "text", allowance_bytes=64 * MIB)) as reference:
        assert len(reference.encode(b"text"))


@pytest.mark.parametrize(
    "start",
    [
        *(_doctor, pytest.param(_smoke, marks=pytest.mark.slow)),
        *(_inbox, _box, _template, _reference),
    ],
)
def test_a_module_in_the_current_folder_does_not_run(
    hostile: Path, start: Callable[[Path], None]
) -> None:
    start(hostile)
    assert not (hostile / "ran").exists()


@pytest.mark.parametrize("module", ["lowtide", "lowtide.__main__"])
def test_nor_does_it_when_python_runs_the_package(hostile: Path, module: str) -> None:
    (hostile / "lowtide.py").unlink()  # Python itself would take it for the package
    (hostile / "text.txt").write_text("some words\n")
    command = [sys.executable, "-m", module, "tokenize", "text.txt", "--out", "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert not (hostile / "ran").exists()


@pytest.mark.parametrize("command", [["doctor"], ["train", "--out", "run", "--inbox", "inbox"]])
def test_what_torch_starts_is_told_not_to_look_there(tmp_path: Path, command: list[str]) -> None:
    """torch's compiler starts Python without `-P`: only the environment reaches it."""
    stand_in = tmp_path / "torch"
    stand_in.mkdir()
    (stand_in / "__init__.py").write_text(TELLS_ITS_ENVIRONMENT)
    (tmp_path / "inbox").mkdir()
    lowtide_process(*command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": ""})
    assert (stand_in / "seen").read_text() == "1"


@pytest.mark.slow
def test_nor_does_it_while_torch_compiles(hostile: Path) -> None:
    """Twenty seconds of a C++ compiler, whose results are tried out in further processes."""
    assert ask_torch(compiles=True).torch is not None
    assert not (hostile / "ran").exists()


COMMANDS = [program.key for program in PROGRAMS] + ["corpus", "verify"]


@pytest.mark.parametrize("key", COMMANDS)
def test_nor_does_it_where_a_command_is_built_for_later(hostile: Path, key: str) -> None:
    made = hostile.parent / "made"
    made.mkdir()
    (made / "tokenizer.json").write_text("{}")
    task = Task(
        files=(made / "missing.txt",),
        tokenizer=made,
        work=made,
        limit_bytes=GIB,
    )
    settings = DemoSettings(memory_bytes=512 * MIB, library=made, with_torch=False)
    commands = {stage.key: stage.command for stage in list_stages(settings)}
    commands |= {program.key: program.command(task) for program in PROGRAMS}
    subprocess.run(commands[key], capture_output=True, timeout=300, check=False)  # it fails, late
    assert not (hostile / "ran").exists()
