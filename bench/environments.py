"""The environments of the peers, by name: made by `make_peers.py`, used by every bench that has `--peers`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
SCRIPTS = Path(__file__).parent / "peers"
PEERS = tuple(sorted(path.stem for path in REQUIREMENTS.glob("*.txt")))
OWN = ("gigatoken", "tokenizers")
"""What lowtide itself needs, in the same versions: such a peer can do without an environment of its own."""
ALONE = "# with --no-deps"
TOLD = "# versions to tell:"
"""Each requirements file has such a line, with the packages whose versions matter for what is measured."""


def python_in(environment: Path) -> Path:
    """The environment's interpreter, whether it is there or not."""
    return environment / "bin" / "python"


def find_python(peers: Path | None, peer: str) -> Path | None:
    """The interpreter that runs a peer: of its environment, or this one where it has the module.

    Without a name it is lowtide that runs, or numpy alone: by this one.
    """
    if not peer:
        return Path(sys.executable)
    if peers is not None and python_in(peers / peer).exists():
        return python_in(peers / peer)
    return Path(sys.executable) if peer in OWN and importlib.util.find_spec(peer) else None


def variables(peer: str) -> dict[str, str]:
    """What a peer finds in its environment variables: where its stand-ins are, if it has some."""
    stand_ins = SCRIPTS / "stand_ins" / peer
    return {"PYTHONPATH": str(stand_ins)} if peer and stand_ins.is_dir() else {}


def split_requirements(text: str) -> tuple[list[str], list[str]]:
    """The lines that pip may follow to what they need, and those behind the mark that it may not."""
    front, _, back = text.partition(ALONE)
    behind = back.partition("\n")[2]  # the mark's own line may give a reason
    return _pins(front), _pins(behind)


def _pins(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"]


def find_versions(python: Path, peer: str) -> str:
    """`datatrove 0.10.1, tokenizers 0.23.3`: what the file says is worth telling, as the environment has it."""
    text = (REQUIREMENTS / f"{peer}.txt").read_text()
    _, _, told = text.partition(TOLD)
    names = told.partition("\n")[0].split()
    code = (
        "import importlib.metadata, json, sys\n"
        "print(json.dumps({n: importlib.metadata.version(n) for n in sys.argv[1:]}))"
    )
    command = [str(python), "-c", code, *names]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return ", ".join(f"{name} {version}" for name, version in json.loads(done.stdout).items())
