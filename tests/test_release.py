"""What is given away: the built files, an installation of them, the extras, and the pinned releases."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lowtide
from lowtide.guard.doctor import check_software
from lowtide.tools.compare import programs

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PINS = ROOT / "constraints.txt"
NOT_PINNED = {"wandb"}
"""Extras that neither the tests nor the README's commands install."""
OF_A_CARD = ("nvidia-", "triton", "cuda-")
"""What torch pins itself, and only some builds of it bring."""
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
NAMED = re.compile(r"(?:lowtide|'\.|\"\.)\[([^\]\s]+)\]")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that knows nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def succeed(*command: str | Path, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the commands of an environment lie elsewhere")
def test_what_is_built_works_in_an_empty_environment(tmp_path: Path) -> None:
    """The wheel is made from the source archive, so that one is whole, too; pip fetches what it asks for."""
    if find_spec("pip") is None:
        pytest.skip("pip is not installed here")
    succeed(sys.executable, "-m", "build", "--no-isolation", "-o", tmp_path, ROOT, cwd=tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    (wheel,) = tmp_path.glob("*.whl")
    check_archive(archive)
    check_wheel(wheel)
    commands = install(wheel, tmp_path / "empty")
    check_commands(commands, tmp_path)
    check_missing_extras(commands, tmp_path)


def check_archive(archive: Path) -> None:
    """It holds what building, testing and reading take, and nothing that was built."""
    with tarfile.open(archive) as opened:
        names = {name.split("/", 1)[1] for name in opened.getnames()}
    wanted = ["pyproject.toml", "hatch_build.py", "constraints.txt", "LICENSE", "README.md"]
    wanted += ["CHANGELOG.md", ".ci/run", "tests/conftest.py", "docs/reference.md"]
    wanted += [str(path.relative_to(ROOT)) for path in (ROOT / "bench").rglob("*.txt")]
    assert set(wanted) <= names
    assert not [name for name in names if name.endswith((".so", ".dylib", ".dll", ".pyc"))]
    folders = {name.split("/")[0] for name in names if "/" in name}
    assert folders == {"src", "tests", "bench", "docs", ".ci"}


def check_wheel(wheel: Path) -> None:
    """Its name and tag, its licences, the compiled part, the mark of a typed package; no tests."""
    tag = f"py3-none-{re.sub('[-.]', '_', sysconfig.get_platform())}"
    assert wheel.name == f"lowtide-{lowtide.__version__}-{tag}.whl"
    about = f"lowtide-{lowtide.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        told = message_from_string(opened.read(f"{about}/METADATA").decode())
        built = message_from_string(opened.read(f"{about}/WHEEL").decode())
    assert (built["Tag"], built["Root-Is-Purelib"]) == (tag, "false")
    assert {"lowtide/py.typed", f"lowtide/native/lowtide_native{SUFFIX}"} <= names
    licences = {f"{about}/licenses/{path}" for path in told.get_all("License-File", [])}
    assert len(licences) == 2
    assert licences <= names
    assert {name.split("/")[0] for name in names} == {"lowtide", about}
    assert set(told.get_all("Provides-Extra", [])) == set(EXTRAS)


def install(wheel: Path, place: Path) -> Path:
    """An environment with the wheel, what it asks for in pinned releases, and nothing else."""
    succeed(sys.executable, "-m", "venv", "--without-pip", place, cwd=wheel.parent)
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install"]
    quick = ["--quiet", "--no-compile", "--disable-pip-version-check"]
    succeed(*pip, *quick, "-c", PINS, wheel, cwd=wheel.parent)
    return place / "bin"


def check_commands(commands: Path, place: Path) -> None:
    """As the README begins."""
    code = """if True:
        import importlib.util, pathlib, lowtide, lowtide.native
        lowtide.native.load_native()
        assert importlib.util.find_spec("torch") is None, "nobody asked for torch"
        home = pathlib.Path(lowtide.__file__).parent
        assert (home / "py.typed").exists()
        print(home)
    """
    home = succeed(commands / "python", "-c", code, cwd=place)
    assert Path(home.strip()).is_relative_to(commands.parent)
    told = succeed(commands / "lowtide", "--version", cwd=place)
    assert lowtide.__version__ in told
    text = "".join(f"Line {number} of a small text.\n\n" for number in range(3000))
    (place / "corpus.txt").write_text(text)
    made = ("corpus.txt", "--out", "tokens", "--memory", "256MiB")
    succeed(commands / "lowtide", "tokenize", *made, cwd=place)
    assert "sound" in succeed(commands / "lowtide", "verify", "tokens", cwd=place)
    succeed(commands / "lowtide", "plan", "tokens", "--gpu", "RTX 4070", cwd=place)


def check_missing_extras(commands: Path, place: Path) -> None:
    """Whoever needs what is not there is told the line that brings it."""
    command = commands / "lowtide"
    asked = [
        [command, "train", "tokens", "--out", "run"],
        [command, "sample", "run", "--prompt", "once"],
        [command, "export", "run", "--to", "huggingface", "--out", "model"],
    ]
    for one in asked:
        refused = run(*one, cwd=place)
        assert refused.returncode == 2, refused.stderr
        assert "hint: `pip install 'lowtide[train]'`" in refused.stderr
    load = "import lowtide; lowtide.TokenDataset('tokens', context=64).loader(4)"
    assert "pip install 'lowtide[train]'" in run(commands / "python", "-c", load, cwd=place).stderr
    told = run(command, "doctor", cwd=place).stdout
    assert "pip install 'lowtide[train]'" in told
    assert "lowtide[compare], lowtide[gpu], lowtide[wandb]" in told


def named_extras(path: Path) -> Iterator[str]:
    """`lowtide[train,gpu]` names two; the names that a program fills in are asked for by themselves."""
    for found in NAMED.findall(path.read_text()):
        if not found.startswith("{"):
            yield from found.split(",")


def test_every_extra_that_is_named_exists() -> None:
    pages = {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}
    pages -= {ROOT / "CHANGELOG.md"}  # it tells of those that are gone, too
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    named = {extra: path.name for path in [*pages, *sources] for extra in named_extras(path)}
    assert {extra: name for extra, name in named.items() if extra not in EXTRAS} == {}
    assert {"train", "gpu", "compare", "wandb"} <= set(named), "each is told of somewhere"
    assert {programs.EXTRA, check_software.ESSENTIAL} <= set(EXTRAS)
    assert set(check_software.FOR_DEVELOPERS) < set(EXTRAS)


def pins() -> dict[str, str]:
    lines = [line for line in PINS.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "numbers, no places"
    return {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}


def test_what_pyproject_asks_for_is_pinned_within_its_bounds() -> None:
    found = pins()
    extras = [line for name, lines in EXTRAS.items() if name not in NOT_PINNED for line in lines]
    asked = [Requirement(line) for line in (*PROJECT["dependencies"], *extras)]
    for one in asked:
        if one.name != "lowtide":
            assert one.specifier.contains(found[canonicalize_name(one.name)]), str(one)
    assert found["torch"] == "2.13.0"


@pytest.mark.skipif(sys.platform != "linux", reason="pinned on Linux; others need a few more")
def test_what_those_ask_for_is_pinned_too() -> None:
    """Everything that the tests run with, however far down."""
    found, seen = pins(), set[str]()
    waiting = [Requirement(line) for line in (*PROJECT["dependencies"], *EXTRAS["test"])]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name == "lowtide" or name.startswith(OF_A_CARD) or f"{name} {one.extras}" in seen:
            continue
        seen.add(f"{name} {one.extras}")
        assert name in found, "run `.ci/pin`"
        waiting += needs_of(one)
    assert len(seen) > len(EXTRAS["test"])


def needs_of(one: Requirement) -> list[Requirement]:
    """Of an installed library with the extras that are asked for."""
    lines = [Requirement(line) for line in metadata.requires(one.name) or ()]
    extras = [{"extra": extra} for extra in (*one.extras, "")]
    return [
        line
        for line in lines
        if line.marker is None or any(line.marker.evaluate(extra) for extra in extras)
    ]
