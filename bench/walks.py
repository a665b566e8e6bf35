"""How many calls lead from one function of lowtide to another on three walks through the code.

    python bench/walks.py                        # of this version
    PYTHONPATH=other/src python bench/walks.py   # of another one

The walks: a document into a shard (`tokenize`), training steps (`train`), and a death explained (`why`). Each
pair of functions, one of which calls the other, counts once, however often it is called. What loads modules,
and calls inside one function (comprehensions, lambdas), does not count.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from types import FrameType

import lowtide
from lowtide.__main__ import main as run_command

PACKAGE = str(Path(lowtide.__file__).parent)


def calls_of(arguments: Sequence[str]) -> int:
    """Pairs of functions of lowtide, caller and called, while a command runs in this process."""
    pairs: set[tuple[str, str]] = set()

    def look(frame: FrameType, event: str, _argument: object) -> None:
        called = name_of(frame) if event == "call" else None
        outer = frame.f_back
        while called and outer is not None:
            caller = name_of(outer)
            if caller == "module":
                return
            if caller:
                if caller != called and called != "module":
                    pairs.add((caller, called))
                return
            outer = outer.f_back

    sys.argv = ["lowtide", *arguments]
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), suppress(SystemExit):
            run_command()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return len(pairs)


def name_of(frame: FrameType) -> str:
    """The file and the function around a frame; empty for other people's code, `module` for what loads one."""
    path = frame.f_code.co_filename
    if not path.startswith(PACKAGE):
        return ""
    name = frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name
    if name == "<module>":
        return "module"
    return f"{path[len(PACKAGE) :]}:{name.split('.<locals>.<')[0].split('.<')[0]}"


def main() -> None:
    os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "a.txt").write_text("The tide rises, the tide falls. " * 4000)
        tokens, run = str(place / "tokens"), str(place / "run")
        tokenize = ["tokenize", str(place / "a.txt"), "--out", tokens, "--val", "0.1", "--quiet"]
        train = [
            "train",
            tokens,
            "--out",
            run,
            "--model",
            "gpt2-pico",
            "--context",
            "64",
            "--steps",
        ]
        small = ["--batch-tokens", "128", "--device", "cpu", "--no-smoke", "--quiet"]
        walks = {
            "a document into a shard": tokenize,
            "training steps": [*train, "4", *small],
            "a death explained": ["why", str(place / "other")],
        }
        other = [*train, "100000", *small]
        for name, arguments in walks.items():
            if arguments[0] == "why":
                other[other.index(run)] = str(place / "other")
                kill_one(other, place / "other")
            print(f"{name}: {calls_of(arguments)} calls from one function to another", flush=True)


def kill_one(arguments: list[str], run: Path) -> None:
    """A training run that was killed after a few steps."""
    with subprocess.Popen([sys.executable, "-m", "lowtide", *arguments], stderr=-3) as process:
        while process.poll() is None and '"step": 3' not in read(run / "log.jsonl"):
            threading.Event().wait(0.1)
        process.kill()


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    main()
