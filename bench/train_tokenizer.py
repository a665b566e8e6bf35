"""Train a tokenizer with lowtide and with its peers, in one run: print times, peaks and equal merges.

    python bench/corpus.py --out /tmp/corpus --megabytes 1050
    python bench/train_tokenizer.py --corpus /tmp/corpus/corpus.txt
    python bench/train_tokenizer.py --corpus /tmp/corpus/corpus.txt --ties

On the whole text lowtide meets gigatoken, on its first `--small-megabytes` also `tokenizers` and `rustbpe`,
which are too slow for more. `--ties` adds a small text in which every word is as common as every other.
Each trainer runs alone in a process of its own, all taking turns for `--rounds` rounds; CPU seconds and peak
private memory are those of the whole process tree, start-up included. Exits 1 when merges differ. `rustbpe`
breaks ties in another way, so its merges are not compared; `pip install rustbpe` brings it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import importlib.util
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from bench.distinct_words import tied_words, write_documents
from bench.jobs import SEPARATOR
from bench.tokenize import Measured, Way, compare, row
from lowtide.tokenizer.byte_pairs import spell
from lowtide.tokenizer.split_words import PLAIN_PATTERNS

GIGATOKEN = """
import os, sys, gigatoken
text, size, folder, pattern, expression = sys.argv[1:]
source = gigatoken.TextFileSource([text], separator=b"<|endoftext|>")
specials = ["<|endoftext|>"]
_, merges = gigatoken.train_bpe(source, int(size), specials, tie_breaking="huggingface")
os.makedirs(folder)
with open(folder + "/merges.hex", "w") as out:
    out.writelines(f"{left.hex()} {right.hex()}\\n" for left, right in merges)
"""
_DOCUMENTS = """
import os, sys
text, size, folder, pattern, expression = sys.argv[1:]
def documents():
    rest = ""
    with open(text, encoding="utf-8", newline="") as file:
        while block := file.read(1 << 20):
            *whole, rest = (rest + block).split("<|endoftext|>")
            yield from whole
    yield rest
"""
TOKENIZERS = (
    _DOCUMENTS
    + """
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == "gpt2")
split = pre_tokenizers.Split(Regex(expression), "isolated")
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = (
    letters if pattern == "gpt2" else pre_tokenizers.Sequence([split, letters])
)
trainer = trainers.BpeTrainer(
    vocab_size=int(size),
    special_tokens=["<|endoftext|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
tokenizer.train_from_iterator(documents(), trainer)
os.makedirs(folder)
tokenizer.model.save(folder)
"""
)
RUSTBPE = (
    _DOCUMENTS
    + """
import rustbpe
tokenizer = rustbpe.Tokenizer()
tokenizer.train_from_iterator(documents(), int(size) - 1, buffer_size=256, pattern=expression)
"""
)
TIED_WORDS = 30_000
"""Of 20,000, all are whole after 24,718 merges: gigatoken then goes on, with pairs that nowhere stand."""
PEERS = {"gigatoken": GIGATOKEN, "tokenizers": TOKENIZERS, "rustbpe": RUSTBPE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What is trained on, and who trains on it."""

    name: str
    path: Path
    trainers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One trainer on one text: how it is run, and where its last merges are."""

    text: Text
    trainer: str
    way: Way
    folder: Path


Measurements = dict[str, list[Measured]]
"""By the name of the way."""


def make_texts(chosen: argparse.Namespace, folder: Path) -> list[Text]:
    """The texts asked for; the small ones are written into the folder."""
    has_gigatoken = chosen.pattern == "gpt2"  # the only pattern it trains with
    fast = ("lowtide", "gigatoken") if has_gigatoken else ("lowtide",)
    texts = []
    if chosen.corpus:
        small = _write_front(chosen.corpus, folder / "small.txt", chosen.small_megabytes * 10**6)
        texts.append(_name_text(chosen.corpus, fast, "the whole text"))
        texts.append(_name_text(small, (*fast, "tokenizers", "rustbpe"), "its front"))
    if chosen.ties:
        ties = folder / "ties.txt"
        write_documents(ties, tied_words(chosen.ties_words, 0))
        texts.append(_name_text(ties, (*fast, "tokenizers"), f"{chosen.ties_words:,} tied words"))
    return texts


def _name_text(path: Path, trainers: tuple[str, ...], what: str) -> Text:
    return Text(name=f"{what}, {path.stat().st_size / 1e6:,.0f} MB", path=path, trainers=trainers)


def _write_front(source: Path, path: Path, most_bytes: int) -> Path:
    """The text's first documents; what stands behind the last separator is left out."""
    with source.open("rb") as file:
        data = file.read(most_bytes)
    end = data.rfind(SEPARATOR.encode())
    path.write_bytes(data if end < 0 else data[: end + len(SEPARATOR)])
    return path


def plan(text: Text, trainer: str, chosen: argparse.Namespace, results: Path) -> Training:
    """Name the run of one trainer on one text."""
    folder = results / f"{trainer} {text.path.stem}"
    arguments = (
        _own_command(text, folder, chosen)
        if trainer == "lowtide"
        else _peer_command(trainer, text, folder, chosen)
    )

    def command(_: Path) -> list[str]:
        shutil.rmtree(folder, ignore_errors=True)  # of the round before: lowtide would go on there
        return arguments

    way = Way(
        name=f"{trainer}, {text.name}",
        text_bytes=text.path.stat().st_size,
        command=command,
        needs="" if trainer == "lowtide" else trainer,
    )
    return Training(text=text, trainer=trainer, way=way, folder=folder)


def lowtide_command(text: Path, out: Path, *, vocab_size: int, memory: str) -> list[str]:
    """lowtide's own command line; the pattern is GPT-2's unless more is said."""
    train = [sys.executable, "-m", "lowtide", "train-tokenizer", str(text), "--quiet"]
    train += ["--vocab-size", str(vocab_size), "--special-token", SEPARATOR]
    return [*train, "--separator", SEPARATOR, "--memory", memory, "--out", str(out)]


def _own_command(text: Text, folder: Path, chosen: argparse.Namespace) -> list[str]:
    size, memory = chosen.vocab_size, chosen.memory
    train = lowtide_command(text.path, folder, vocab_size=size, memory=memory)
    workers = ["--workers", str(chosen.workers)] if chosen.workers else []
    return [*train, "--pattern", chosen.pattern, *workers]


def _peer_command(trainer: str, text: Text, folder: Path, chosen: argparse.Namespace) -> list[str]:
    expression = PLAIN_PATTERNS[chosen.pattern]
    command = [sys.executable, "-c", PEERS[trainer], str(text.path), str(chosen.vocab_size)]
    return [*command, str(folder), chosen.pattern, expression]


def print_times(trainings: Sequence[Training], measured: Measurements, baseline: str) -> None:
    """One row for each training, compared with the baseline on the same text; alone, with itself."""
    print(
        f"| trainer, text | CPU s (range) | wall s | MB per CPU s | × {baseline}, CPU "
        "| × by the clock | peak private |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for training in trainings:
        rivals = [other for other in trainings if other.text == training.text]
        peers = [other for other in rivals if other.trainer == baseline] or [training]
        runs = measured[peers[0].way.name]
        print(row(training.way, measured[training.way.name], _cpu(runs), _wall(runs)))


def print_comparison(trainings: Sequence[Training], measured: Measurements) -> bool:
    """The first trainer of each text against the others; returns whether all merges are equal."""
    print("\n| text | trainer | against | merges equal | × faster, CPU | × by the clock |")
    print("|---|---|---|--:|--:|--:|")
    first: dict[str, Training] = {}
    all_equal = True
    for peer in trainings:
        own = first.setdefault(peer.text.name, peer)
        if peer is not own:
            equal, said = _compare_merges(own, peer)
            all_equal = all_equal and equal
            names = f"{own.text.name} | {own.trainer} | {peer.trainer}"
            print(f"| {names} | {said} | {_faster(own, peer, measured)} |")
    return all_equal


def _faster(own: Training, peer: Training, measured: Measurements) -> str:
    runs, peer_runs = measured[own.way.name], measured[peer.way.name]
    return f"{_cpu(peer_runs) / _cpu(runs):.2f} | {_wall(peer_runs) / _wall(runs):.2f}"


def _compare_merges(own: Training, peer: Training) -> tuple[bool, str]:
    if peer.trainer == "rustbpe":
        return True, "not compared"
    left, right = read_merges(own.folder), read_merges(peer.folder)
    same = sum(one == other for one, other in zip(left, right, strict=False))
    most = max(len(left), len(right))
    return same == most, f"{same:,} of {most:,}"


def read_merges(folder: Path) -> list[str]:
    """The merges by rank, in stand-in letters: as merges.txt has them, or spelled from plain bytes."""
    if (folder / "merges.hex").exists():
        lines = (folder / "merges.hex").read_text().splitlines()
        return [" ".join(spell(bytes.fromhex(part)) for part in line.split()) for line in lines]
    lines = (folder / "merges.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return lines[1:] if lines[0].startswith("#version") else lines


def _cpu(runs: Sequence[Measured]) -> float:
    return statistics.median(run.cpu_seconds for run in runs)


def _wall(runs: Sequence[Measured]) -> float:
    return statistics.median(run.wall_seconds for run in runs)


def choose() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, help=f"a text with {SEPARATOR} behind each document")
    parser.add_argument("--ties", action="store_true", help="a text full of ties, too")
    parser.add_argument("--ties-words", type=int, default=TIED_WORDS)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--pattern", choices=list(PLAIN_PATTERNS), default="gpt2")
    parser.add_argument("--memory", default="256MiB", help="lowtide's budget")
    parser.add_argument("--workers", type=int, help="lowtide's workers; it chooses them by itself")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small-megabytes", type=int, default=100)
    parser.add_argument("--skip", default="-", help="leave out the ways whose name contains this")
    chosen = parser.parse_args()
    if not (chosen.corpus or chosen.ties):
        parser.error("nothing to train on: pass --corpus FILE, --ties or both")
    return chosen


def is_present(training: Training) -> bool:
    """Whether the trainer is installed; says so where it is not."""
    needs = training.way.needs
    if needs and not importlib.util.find_spec(needs):
        print(f"left out: {training.way.name} (needs {needs})")
        return False
    return True


def main() -> None:
    chosen = choose()
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as folder:
        texts = make_texts(chosen, Path(folder))
        every = [
            plan(text, trainer, chosen, Path(folder)) for text in texts for trainer in text.trainers
        ]
        trainings = [one for one in every if chosen.skip not in one.way.name and is_present(one)]
        ways = [training.way for training in trainings]
        measured = {way.name: runs for way, runs in compare(ways, chosen.rounds)}
        baseline = "gigatoken" if chosen.pattern == "gpt2" else "tokenizers"
        print_times(trainings, measured, baseline)
        all_equal = print_comparison(trainings, measured)
    sys.exit(0 if all_equal else 1)


if __name__ == "__main__":
    main()
