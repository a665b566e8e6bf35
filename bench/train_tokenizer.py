"""Train a tokenizer with lowtide and with its peers, in one run: print times, peaks and equal merges.

    python bench/corpus.py --out /tmp/corpus --megabytes 1050 --from linux-source-6.1.tar.xz
    python bench/make_peers.py /tmp/peers gigatoken tokenizers rustbpe sentencepiece
    python bench/train_tokenizer.py --corpus /tmp/corpus/corpus.txt --peers /tmp/peers
    python bench/train_tokenizer.py --ties

On the whole text lowtide meets gigatoken, on its first `--small-megabytes` also `tokenizers`, `rustbpe` and
`sentencepiece`, which are slower; both texts are trained on by a quarter, too. `--ties` adds a small text where
every word is as common as every other. Each trainer runs alone in a process of its own, all taking turns for
`--rounds` rounds; CPU seconds and peak private memory are those of the whole process tree, start-up included.
Exits 1 when merges differ that should not, or when lowtide fails. rustbpe breaks ties in another way, and how
many tokens it has in common is told; sentencepiece cuts words and letters otherwise: it cannot make the same
merges.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import base64
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.distinct_words import tied_words, write_documents
from bench.environments import SCRIPTS, find_python, find_versions
from bench.jobs import SEPARATOR
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
from lowtide.tokenizer.byte_pairs import spell
from lowtide.tokenizer.patterns import PLAIN_PATTERNS

TIED_WORDS = 30_000
"""Of 20,000, all are whole after 24,718 merges: gigatoken then goes on, with pairs that nowhere stand."""
OWN = "lowtide"
FAST, SLOW = (OWN, "gigatoken"), ("tokenizers", "rustbpe", "sentencepiece")
QUARTER = "a quarter of "
COMPARISON_HEADER = (
    "| text | peer | merges equal to lowtide's | its CPU s over lowtide's | by wall time |\n"
    "|---|---|--:|--:|--:|"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What is trained on, and who trains on it."""

    name: str
    path: Path
    trainers: tuple[str, ...]

    @property
    def is_quarter(self) -> bool:
        return self.path.name.startswith(QUARTER)


@dataclass(slots=True, kw_only=True)
class Training:
    """One trainer on one text, and the merges or tokens that it found."""

    text: Text
    trainer: str
    runs: Runs
    merges: list[str]


# Texts


def make_texts(chosen: argparse.Namespace, folder: Path) -> list[Text]:
    """The texts asked for; the small ones are written into the folder."""
    has_gigatoken = chosen.pattern == "gpt2"  # the only pattern it trains with
    fast = FAST if has_gigatoken else (OWN,)
    texts = []
    if chosen.corpus:
        size = chosen.corpus.stat().st_size
        front_bytes = min(size, chosen.small_megabytes * 10**6)
        fronts = {"whole": size, "front": front_bytes}
        for name, most_bytes in fronts.items():
            trainers = (*fast, *SLOW) if name == "front" else fast
            for what, share in ((QUARTER, 4), ("", 1)):
                path = folder / f"{what}{name}.txt"
                write_front(chosen.corpus, path, most_bytes // share)
                texts.append(_name_text(path, trainers, f"{what}the {name}"))
    if chosen.ties:
        ties = folder / "ties.txt"
        write_documents(ties, tied_words(chosen.ties_words, 0))
        texts.append(_name_text(ties, (*fast, "tokenizers"), f"{chosen.ties_words:,} tied words"))
    return texts


def _name_text(path: Path, trainers: tuple[str, ...], what: str) -> Text:
    return Text(name=f"{what}, {path.stat().st_size / 1e6:,.0f} MB", path=path, trainers=trainers)


def write_front(source: Path, path: Path, most_bytes: int) -> None:
    """The text's first documents; what stands behind the last separator is left out."""
    if most_bytes >= source.stat().st_size:
        path.symlink_to(source.resolve())
        return
    with source.open("rb") as file:
        data = file.read(most_bytes)
    end = data.rfind(SEPARATOR.encode())
    path.write_bytes(data if end < 0 else data[: end + len(SEPARATOR)])


# Ways


def plan(text: Text, trainer: str, chosen: argparse.Namespace) -> Training | None:
    """The run of one trainer on one text; None where the trainer is not there."""
    command: Callable[[Path], list[str]]
    if trainer == OWN:
        command = _own_command(text, chosen)
    else:
        python = find_python(chosen.peers, trainer)
        if python is None:
            return None
        command = _peer_command(python, trainer, text, chosen)
    name = f"{trainer}, {text.name}"
    way = Way(name=name, text_bytes=text.path.stat().st_size, command=command)
    return Training(text=text, trainer=trainer, runs=Runs(way=way), merges=[])


def lowtide_command(text: Path, out: Path, *, vocab_size: int, memory: str) -> list[str]:
    """lowtide's own command line; the pattern is GPT-2's unless more is said."""
    train = [sys.executable, "-m", "lowtide", "train-tokenizer", str(text), "--quiet"]
    train += ["--vocab-size", str(vocab_size), "--special-token", SEPARATOR]
    return [*train, "--separator", SEPARATOR, "--memory", memory, "--out", str(out)]


def _own_command(text: Text, chosen: argparse.Namespace) -> Callable[[Path], list[str]]:
    workers = ["--workers", str(chosen.workers)] if chosen.workers else []

    def command(out: Path) -> list[str]:
        size, memory = chosen.vocab_size, chosen.memory
        train = lowtide_command(text.path, out / "tokenizer", vocab_size=size, memory=memory)
        return [*train, "--pattern", chosen.pattern, *workers]

    return command


def _peer_command(
    python: Path, trainer: str, text: Text, chosen: argparse.Namespace
) -> Callable[[Path], list[str]]:
    script = [str(python), str(SCRIPTS / f"train_{trainer}.py"), str(text.path)]
    pattern = [chosen.pattern, PLAIN_PATTERNS[chosen.pattern]]
    return lambda out: [*script, str(chosen.vocab_size), str(out), *pattern]


def run_all(trainings: Sequence[Training], rounds: int) -> None:
    """Measure every training, and keep what its first round has learnt."""
    by_name = {training.runs.way.name: training for training in trainings}

    def look(way: Way, folder: Path) -> str:
        by_name[way.name].merges = read_merges(folder)
        return ""

    for runs in compare([training.runs.way for training in trainings], rounds, look):
        by_name[runs.way.name].runs = runs


# What was learnt


def read_merges(folder: Path) -> list[str]:
    """The merges by rank, in stand-in letters, or the tokens where a trainer tells no merges."""
    for name, read in _READERS.items():
        if (folder / name).exists():
            return read((folder / name).read_bytes())
    return []


def _spelled_pairs(data: bytes) -> list[str]:
    lines = data.decode("ascii").splitlines()
    return [" ".join(spell(bytes.fromhex(part)) for part in line.split()) for line in lines]


def _merges_txt(data: bytes) -> list[str]:
    lines = data.decode().rstrip("\n").split("\n")
    return lines[1:] if lines[0].startswith("#version") else lines


def _spelled_tokens(data: bytes) -> list[str]:
    return [spell(base64.b64decode(line)) for line in data.splitlines()]


_READERS: dict[str, Callable[[bytes], list[str]]] = {
    "merges.hex": _spelled_pairs,
    "merges.txt": _merges_txt,
    "tokenizer/merges.txt": _merges_txt,
    "tokens.txt": _spelled_tokens,
}


def compare_merges(own: Sequence[str], peer: Sequence[str], trainer: str) -> tuple[bool, str]:
    """Whether the peer found what it should have found, and in words how much of it."""
    if trainer == "sentencepiece":
        return True, "not compared: other words and letters"
    if trainer == "rustbpe":
        mine = {line.replace(" ", "") for line in own}
        common = len(mine & set(peer))
        return True, f"{common:,} of {len(mine):,} tokens in common, ties broken otherwise"
    same = sum(one == other for one, other in zip(own, peer, strict=False))
    most = max(len(own), len(peer))
    return same == most, f"{same:,} of {most:,}"


# Tables


def print_times(trainings: Sequence[Training], baseline: str) -> None:
    """One row for each training but those on quarters, compared with the baseline on the same text."""
    print(f"| trainer, text | {HEADER.format(baseline)} |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for training in trainings:
        if not training.text.is_quarter:
            print(row(training.runs, _find(trainings, baseline, training.text.name)))


def _find(trainings: Sequence[Training], trainer: str, text: str) -> Runs | None:
    found = (one.runs for one in trainings if (one.trainer, one.text.name) == (trainer, text))
    return next(found, None)


def print_growth(trainings: Sequence[Training]) -> None:
    """Each trainer on a text beside the same one on a quarter of it."""
    quarters = {
        (one.trainer, one.text.path.name.removeprefix(QUARTER)): one.runs
        for one in trainings
        if one.text.is_quarter
    }
    print(f"\n{GROWTH_HEADER}")
    for training in trainings:
        quarter = quarters.get((training.trainer, training.text.path.name))
        if quarter is not None and not training.text.is_quarter:
            print(growth_row(quarter, training.runs))


def print_comparison(trainings: Sequence[Training]) -> bool:
    """lowtide against the others on each text, where it ran; False when merges are wrong or lowtide failed."""
    owns = {one.text: one for one in trainings if one.trainer == OWN}
    all_equal = not any(own.runs.failure for own in owns.values())
    if owns:
        print(f"\n{COMPARISON_HEADER}")
    for peer in trainings:
        own = owns.get(peer.text)
        if peer is own or own is None or not (own.runs.measured and peer.runs.measured):
            continue
        equal, said = compare_merges(own.merges, peer.merges, peer.trainer)
        all_equal = all_equal and equal
        cpu = peer.runs.cpu_seconds / own.runs.cpu_seconds
        wall = peer.runs.wall_seconds / own.runs.wall_seconds
        print(f"| {peer.text.name} | {peer.trainer} | {said} | {cpu:.2f} | {wall:.2f} |")
    return all_equal


# The command


def choose() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, help=f"a text with {SEPARATOR} behind each document")
    parser.add_argument("--peers", type=Path, help="folder made by bench/make_peers.py")
    parser.add_argument("--ties", action="store_true", help="a text full of ties, too")
    parser.add_argument("--ties-words", type=int, default=TIED_WORDS)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--pattern", choices=list(PLAIN_PATTERNS), default="gpt2")
    parser.add_argument("--memory", default="256MiB", help="lowtide's budget")
    parser.add_argument("--workers", type=int, help="lowtide's workers; it chooses them by itself")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small-megabytes", type=int, default=100)
    parser.add_argument("--only", default="", help="names, or parts of names: a,b")
    parser.add_argument("--skip", default="", help="leave these out: a,b")
    chosen = parser.parse_args()
    if not (chosen.corpus or chosen.ties):
        parser.error("nothing to train on: pass --corpus FILE, --ties or both")
    return chosen


def print_peers(peers: Path | None) -> None:
    pythons = {name: find_python(peers, name) for name in (*FAST[1:], *SLOW)}
    print(describe_run({name: find_versions(at, name) for name, at in pythons.items() if at}))
    for name, python in pythons.items():
        if python is None:
            print(f"left out: {name} (no environment: python bench/make_peers.py DIR {name})\n")


def main() -> None:
    chosen = choose()
    print_peers(chosen.peers)
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as folder:
        texts = make_texts(chosen, Path(folder))
        planned = [plan(text, trainer, chosen) for text in texts for trainer in text.trainers]
        trainings = [
            one for one in planned if one and is_wanted(one.runs.way.name, chosen.only, chosen.skip)
        ]
        run_all(trainings, chosen.rounds)
        print_times(trainings, "gigatoken" if chosen.pattern == "gpt2" else "tokenizers")
        print_growth(trainings)
        all_equal = print_comparison(trainings)
    sys.exit(0 if all_equal else 1)


if __name__ == "__main__":
    main()
