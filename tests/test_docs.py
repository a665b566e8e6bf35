"""The documentation says what the program does: help texts are its own, and the README's commands run."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lowtide
from lowtide import errors
from lowtide.memory.budget import choose_budget
from lowtide.memory.limits import LimitCandidate, MemoryLimit
from lowtide.shards.manifest import DatasetManifest
from lowtide.source.find_inputs import _COMPRESSIONS, _KINDS
from lowtide.stages.learn_run import LearntSize
from lowtide.stages.plan_tokenizer import spend_on_training
from lowtide.stages.tokenizer_files import CorpusFile, OutputFile, TokenizerManifest
from lowtide.tokenizer.count_words import ENTRY_BYTES
from lowtide.units import GIB, format_bytes, format_count

ROOT = Path(__file__).parent.parent
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
TRAINING = (ROOT / "docs" / "tokenizer.md").read_text()
LOADING = (ROOT / "docs" / "loading.md").read_text()
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def load(path: Path) -> ModuleType:
    """A script beside the package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(text: str) -> str:
    """The text without its line breaks: releases of click wrap differently."""
    return " ".join(text.split())


def test_the_help_in_the_reference_is_the_programs_own() -> None:
    filled = load(ROOT / "docs" / "make_reference.py").fill(REFERENCE)
    assert words(filled) == words(REFERENCE), "run `python docs/make_reference.py`"


def test_every_command_is_in_the_reference() -> None:
    from lowtide.cli.main import cli

    shown = set(re.findall(r"<!-- help: lowtide ?([\w-]*) -->", REFERENCE))
    assert shown == {"", *cli.commands}


def test_every_exit_code_is_in_the_reference() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", REFERENCE, re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    raised = {kind.exit_code for kind in kinds if issubclass(kind, errors.LowtideError)}
    assert told == raised | {0}


def test_every_field_of_the_manifest_is_in_the_reference() -> None:
    section = REFERENCE.partition("### lowtide.json")[2].partition("### documents_")[0]
    told = set(re.findall(r"`(\w+)`", section))
    for kind in (DatasetManifest, lowtide.TokenizeSettings):
        assert {field.name for field in dataclasses.fields(kind)} <= told


def test_every_field_of_a_tokenizers_manifest_is_in_the_reference() -> None:
    section = REFERENCE.partition("### lowtide-tokenizer.json")[2].partition("### run.json")[0]
    told = set(re.findall(r"`(\w+)`", section))
    for kind in (TokenizerManifest, lowtide.TokenizerSettings, CorpusFile, LearntSize, OutputFile):
        assert {field.name for field in dataclasses.fields(kind)} <= told


def test_every_public_name_is_in_the_reference() -> None:
    section = REFERENCE.partition("## Python")[2]
    for name in set(lowtide.__all__) - {"__version__"}:
        assert f"`{name}" in section, name


def test_everything_that_a_tokenizer_can_do_is_in_the_reference() -> None:
    section = REFERENCE.partition("### Tokenizer\n")[2]
    for name in vars(lowtide.Tokenizer):
        assert name.startswith("_") or re.search(rf"`(Tokenizer\.)?{name}\b", section), name


@pytest.mark.parametrize("kind", [lowtide.TokenDataset, lowtide.Mixture])
def test_everything_that_a_loader_can_do_is_in_the_reference(kind: type) -> None:
    section = REFERENCE.partition(f"### {kind.__name__}\n")[2].partition("\n### ")[0]
    for name in vars(kind):
        assert name.startswith("_") or re.search(rf"`{name}\b", section), name


def test_the_table_of_budgets_is_what_the_program_spends() -> None:
    row = re.compile(r"^\| (\d+[MG]iB) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
    limit = MemoryLimit(candidates=(LimitCandidate(source="this test", total_bytes=64 * GIB),))
    assert row.search(TRAINING)
    for memory, *told, merges in row.findall(TRAINING):
        for cores, words in zip((2, 16), told, strict=True):
            budget = choose_budget(memory, limit)
            spent = spend_on_training(budget, workers=cores, reads_rows=False)
            held = format_count(spent.table_bytes // ENTRY_BYTES)
            assert words == f"{spent.workers} × {held}"
            assert merges == format_bytes(spent.merge_bytes)


def test_every_kind_of_input_is_in_the_reference() -> None:
    section = REFERENCE.partition("## Inputs")[2].partition("## Tokenizers")[0]
    for suffix in (*_KINDS, ".gz", ".zst"):
        assert f"`{suffix}`" in section
    assert set(_COMPRESSIONS.values()) == {"gz", "zst"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_that_is_written_about_exists(page: Path) -> None:
    from lowtide.cli.main import cli

    known = {"--help", "--version", "--nproc-per-node"}  # the last is torchrun's
    for command in (cli, *cli.commands.values()):
        known |= {name for option in command.params for name in option.opts}
    lines = [line for line in page.read_text().splitlines() if "lowtide " in line]
    names = "|".join(cli.commands)
    for call in re.findall(rf"\blowtide (?:{names})\b[^`#|]*", "\n".join(lines)):
        assert set(re.findall(r"(?<!\w)--[a-z-]+", call)) <= known, call


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "call"),
    [(REFERENCE, "lowtide.tokenize("), (TRAINING, "lowtide.train_tokenizer(")],
    ids=["reference", "tokenizer"],
)
def test_the_python_of_a_page_runs(tmp_path: Path, page: str, call: str) -> None:
    (tmp_path / "corpus").mkdir()
    lines = [f"line {number} of the corpus\n" for number in range(1000)]
    (tmp_path / "corpus" / "a.txt").write_text("".join(lines))
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert call in code
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_python_of_the_loading_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = tmp_path / "corpus.txt"
    text.write_text("".join(f"line {number} of the corpus\n\n" for number in range(4000)))
    settings = lowtide.TokenizeSettings(val=0.1, split="tail")
    lowtide.tokenize([str(text)], tmp_path / "tokens", settings, memory="512MiB")
    code = "\n".join(re.findall(r"```python\n(.*?)```", LOADING, re.DOTALL))
    assert "lowtide.Mixture(" in code
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "source" in done.stdout


def test_the_examples_of_the_python_page_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("datasets")
    page = (ROOT / "docs" / "python.md").read_text().partition("## Functions")[0]
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert "lowtide.watch(" in code
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "<TokenizeResult tokens: " in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the README's commands are for a POSIX shell")
def test_the_first_command_of_the_readme_works(tmp_path: Path) -> None:
    """All lines but the install, in an empty folder, with the environment that runs the tests."""
    pytest.importorskip("torch")
    (block,) = re.findall(r"<!-- runs in CI -->\n```bash\n(.*?)```", README, re.DOTALL)
    if not (Path(sys.prefix) / "bin" / "lowtide").exists():
        pytest.skip("lowtide is not installed as a command here")
    lines = [line for line in block.splitlines() if not re.search(r"pip install|-m venv", line)]
    assert lines == ["lowtide demo"]
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join([*lines, "lowtide demo --clean"])],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "10/10  report" in done.stdout
    assert "Finished: 300 of 300 steps" in done.stdout
    assert list(tmp_path.iterdir()) == []
