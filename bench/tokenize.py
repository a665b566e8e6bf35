"""Tokenize the same corpus with lowtide and with its peers, in one run, and print the tables.

    python bench/corpus.py --out /tmp/corpus --megabytes 250 --from linux-source-6.1.tar.xz
    python bench/make_peers.py /tmp/peers
    python bench/tokenize.py /tmp/corpus --peers /tmp/peers

Each way runs alone in a process of its own, the ways taking turns for `--rounds` rounds, on the whole corpus
and on its first quarter. CPU seconds and peak private memory are those of the whole process tree, start-up and
the last fsync included. Peers get two processes or threads where they can. What each has written is compared
with the ids of tiktoken, document by document; exits 1 when they differ by more than a known reason explains,
or when lowtide fails. A peer without an environment is left out and named.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # this file would hide a standard module

import argparse
import tempfile

from bench.environments import find_python, find_versions
from bench.measuring import (
    GROWTH_HEADER,
    HEADER,
    Runs,
    Way,
    compare,
    describe_run,
    growth_row,
    is_wanted,
    row,
)
from bench.tokenize_ways import (
    BASELINE,
    PEER_WAYS,
    encode_plainly,
    is_wrong,
    make_parts,
    make_quarter,
    own_ways,
    peer_ways,
    say_tokens,
    write_vocabulary,
)


def choose() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="folder made by bench/corpus.py")
    parser.add_argument("--peers", type=Path, help="folder made by bench/make_peers.py")
    parser.add_argument("--memory", default="256MiB", help="lowtide's budget")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="names, or parts of names: a,b")
    parser.add_argument("--skip", default="", help="leave these out: a,b")
    parser.add_argument("--no-growth", action="store_true", help="the whole corpus alone")
    return parser.parse_args()


def run_ways(corpus: Path, folder: Path, chosen: argparse.Namespace) -> list[Runs]:
    """Every way on one corpus, its output looked at once."""
    wanted = encode_plainly(corpus)
    print(f"{corpus}: {wanted.documents:,} documents, {wanted.tokens:,} tokens", file=sys.stderr)
    parts = make_parts(corpus, folder / "parts")
    vocabulary = write_vocabulary(folder / "vocabulary")
    every = own_ways(corpus, chosen.memory) + peer_ways(corpus, parts, vocabulary, chosen.peers)
    ways = [way for way in every if is_wanted(way.name, chosen.only, chosen.skip)]

    def look(way: Way, out: Path) -> str:
        return say_tokens(way, out, wanted)

    return compare(ways, chosen.rounds, look)


def print_peers(chosen: argparse.Namespace) -> None:
    """What the peers are, and which are missing."""
    names = dict.fromkeys(way.peer for way in PEER_WAYS)
    pythons = {name: find_python(chosen.peers, name) for name in names}
    print(
        describe_run(
            {name: find_versions(python, name) for name, python in pythons.items() if python}
        )
    )
    for name, python in pythons.items():
        if python is None:
            print(f"left out: {name} (no environment: python bench/make_peers.py DIR {name})\n")


def print_table(every: list[Runs], what: str) -> None:
    baseline = next((runs for runs in every if runs.way.name == BASELINE), None)
    print(f"| {what} | {HEADER.format('gigatoken')} | ids |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    for runs in every:
        print(f"{row(runs, baseline)} {runs.said} |")


def print_growth(quarters: list[Runs], wholes: list[Runs]) -> None:
    print(f"\n{GROWTH_HEADER}")
    for quarter, whole in zip(quarters, wholes, strict=True):
        print(growth_row(quarter, whole))


def main() -> None:
    chosen = choose()
    print_peers(chosen)
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as temporary:
        folder = Path(temporary)
        quarters: list[Runs] = []
        if not chosen.no_growth:
            quarter = make_quarter(chosen.corpus, folder / "corpus")
            quarters = run_ways(quarter, folder / "quarter", chosen)
        wholes = run_ways(chosen.corpus, folder / "whole", chosen)
    megabytes = (chosen.corpus / "corpus.txt").stat().st_size / 1e6
    print_table(wholes, f"{megabytes:,.0f} MB")
    if quarters:
        print_growth(quarters, wholes)
    sys.exit(any(is_wrong(runs) for runs in quarters + wholes))


if __name__ == "__main__":
    main()
