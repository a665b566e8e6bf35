"""Make the environments of the peers: one folder for each, with what its requirements file pins.

    python bench/make_peers.py /tmp/peers                     all of them: about 6 GB, mostly torch three times
    python bench/make_peers.py /tmp/peers dolma litdata       these alone

An environment that has these versions already is left as it is. pip fetches from the index it is set to. Where
that has no CPU build of torch, `torch==2.13.0` brings CUDA: name PyTorch's own index in PIP_EXTRA_INDEX_URL.
Lines behind `# with --no-deps` in a requirements file are installed without what they ask for themselves.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import shutil
import subprocess
import tempfile

from bench.environments import PEERS, REQUIREMENTS, python_in, split_requirements

_DONE = "requirements.txt"
"""A copy of the requirements inside the environment, written last: it is whole, and of these versions."""


def make_environment(folder: Path, peer: str) -> bool:
    """A virtual environment for the peer; False where a whole one of the same versions is there."""
    place, text = folder / peer, (REQUIREMENTS / f"{peer}.txt").read_text()
    with_needs, alone = split_requirements(text)
    done = place / _DONE
    if done.exists() and split_requirements(done.read_text()) == (with_needs, alone):
        return False
    _remove_environment(place)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    _install(place, with_needs)
    _install(place, alone, "--no-deps")
    done.write_text(text)
    return True


def _remove_environment(place: Path) -> None:
    """Nothing but an environment is removed: the folder that was named may be somebody's own."""
    if not place.exists():
        return
    if not (place / "pyvenv.cfg").exists():
        raise SystemExit(
            f"{place} exists and is not a virtual environment: move it away, or name another folder"
        )
    shutil.rmtree(place)


def _install(place: Path, lines: list[str], *options: str) -> None:
    if not lines:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        pip = [str(python_in(place)), "-m", "pip", "install", "--quiet", *options]
        subprocess.run([*pip, "--requirement", file.name], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("peers", nargs="*", metavar="peer", help=", ".join(PEERS))
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.peers) - set(PEERS))
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    failed = []
    for peer in chosen.peers or PEERS:
        try:
            made = make_environment(chosen.folder, peer)
            print(f"{peer}: {'made' if made else 'was there'}", flush=True)
        except subprocess.CalledProcessError as error:
            failed.append(peer)
            print(f"{peer}: failed, {error}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
