"""What the linters of `.ci/lint` cannot see: the picture in ARCHITECTURE.md, and what may stand where."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_the_picture_in_architecture_is_the_contract() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    match = re.search(r"```layers\n(.*?)```", text, re.DOTALL)
    assert match
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert match.group(1).split("\n")[:-1] == contract["contracts"][0]["layers"]


def test_every_room_is_on_the_picture() -> None:
    rooms = {p.stem for p in (ROOT / "src/lowtide").iterdir() if not p.name.startswith(("_", "py"))}
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    known = {room for layer in layers[0]["layers"] for room in layer.split(" | ")}
    assert rooms == known


def test_no_pickle_and_no_prints_in_the_library() -> None:
    found = [
        f"{path.name}: {line}"
        for path in SOURCES
        for line in path.read_text().splitlines()
        if re.search(r"\bpickle\b|(?<![.\w])print\(|weights_only=False|shell=True", line)
    ]
    assert found == []


def test_every_python_child_is_started_apart_from_the_current_folder() -> None:
    found = [path.name for path in SOURCES if "sys.executable" in path.read_text()]
    assert found == ["child.py"]


def test_torch_is_loaded_by_those_alone_who_work_with_tensors() -> None:
    rooms = ("model", "training")
    found = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.parent.name not in rooms
        and re.search(r"^\s*(import|from) torch\b", path.read_text(), re.MULTILINE)
    ]
    assert found == ["src/lowtide/dataset/loader.py"]
