"""Train with lowtide and with `tokenizers`, compare every merge and every id, then let all peers encode.

    python bench/corpus.py --out /tmp/corpus --megabytes 250
    python bench/trained_exact.py /tmp/corpus/corpus.txt --megabytes 120
    python bench/prose.py --from unpacked --out /tmp/prose.txt
    python bench/trained_exact.py /tmp/prose.txt
    python bench/trained_exact.py --generated

Both get the same documents, special tokens and pattern; their tokenizer.json must be the same bytes. Then
a sample (the last two megabytes of a file, special tokens among them) is encoded by every library that opens
what lowtide wrote, and all ids must be equal. Exits 1 on any difference, and names the first one.
Where one `--special-token` begins another, tiktoken takes either: do not pass both.

`--generated` is made of ties, repeated letters and words of 1 MB. `tokenizers` moves the rest of a word at
every merge, so each of these words takes it ten minutes or more; `--long-word-bytes 100000` takes seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import importlib.util
import json
import random
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product, zip_longest
from typing import TYPE_CHECKING

from bench.distinct_words import repeated_letters, tied_words, write_documents
from bench.jobs import SEPARATOR
from lowtide.settings import PatternName
from lowtide.tokenizer.patterns import PLAIN_PATTERNS

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

SAMPLE_BYTES = 2_000_000
LONG_WORD_TOKENS = 1000
"""More would take `tokenizers` hours."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_IDEOGRAPHS = [chr(point) for point in range(0x4E00, 0x4E40)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What is trained on, a separator after each document."""

    name: str
    path: Path
    most_tokens: int
    """A smaller vocabulary than the one asked for, where `tokenizers` would take too long."""
    sample: str
    """What the peers encode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The settings that both trainers get."""

    pattern: PatternName
    vocab_size: int
    special_tokens: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """A tokenizer.json, and how long it took to make."""

    file: bytes
    seconds: float

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = json.loads(self.file)["model"]["vocab"]
        return vocabulary

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        return [(left, right) for left, right in json.loads(self.file)["model"]["merges"]]


def learn_with_lowtide(text: Text, wanted: Wanted, folder: Path, memory: str) -> Learnt:
    """The command line, start-up included."""
    command = [sys.executable, "-m", "lowtide", "train-tokenizer", str(text.path), "--quiet"]
    command += ["--separator", SEPARATOR, "--pattern", wanted.pattern, "--memory", memory]
    command += ["--vocab-size", str(wanted.vocab_size), "--out", str(folder)]
    for token in wanted.special_tokens:
        command += ["--special-token", token]
    started = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    seconds = time.monotonic() - started
    if done.returncode:
        sys.exit(f"lowtide failed on {text.name} with exit code {done.returncode}")
    return Learnt(file=(folder / "tokenizer.json").read_bytes(), seconds=seconds)


def learn_with_tokenizers(text: Text, wanted: Wanted) -> Learnt:
    """BpeTrainer on the documents, one by one. It does not know special tokens in a text: we cut there."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(wanted.pattern)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=wanted.vocab_size,
        special_tokens=list(wanted.special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    started = time.monotonic()
    tokenizer.train_from_iterator(_documents(text.path, wanted.special_tokens), trainer)
    seconds = time.monotonic() - started
    return Learnt(file=tokenizer.to_str(pretty=True).encode(), seconds=seconds)


def _pre_tokenizer(pattern: PatternName) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    if pattern == "gpt2":
        return ByteLevel(add_prefix_space=False)
    split = Split(Regex(PLAIN_PATTERNS[pattern]), "isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


def _documents(path: Path, special_tokens: Sequence[str]) -> Iterator[str]:
    """The text between separators and special tokens; where two begin together, the longer one cuts."""
    cuts = sorted({SEPARATOR, *special_tokens}, key=len, reverse=True)
    with path.open(encoding="utf-8", newline="") as file:
        yield from re.split("|".join(map(re.escape, cuts)), file.read())


def first_difference(own: Learnt, peer: Learnt) -> str | None:
    """Where two results part: the first merge, else the first id, else any byte of the file."""
    for rank, (left, right) in enumerate(zip_longest(own.merges, peer.merges)):
        if left != right:
            return f"merge {rank} is {left} for lowtide and {right} for tokenizers"
    everyone = own.vocabulary.keys() | peer.vocabulary.keys()
    for token in sorted(everyone, key=lambda token: own.vocabulary.get(token, -1)):
        number, other = own.vocabulary.get(token), peer.vocabulary.get(token)
        if number != other:
            return f"{token!r} has id {number} for lowtide and {other} for tokenizers"
    return None if own.file == peer.file else "same merges and ids, but tokenizer.json differs"


def encode_with_tokenizers(folder: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


def encode_with_transformers(folder: Path, text: str) -> list[int]:
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False)
    return ids


def encode_with_tiktoken(folder: Path, text: str) -> list[int]:
    """The rank file's name says how words are cut; special tokens are named in tokenizer.json only."""
    from tiktoken import Encoding
    from tiktoken.load import load_tiktoken_bpe

    pattern = next(name for name in PLAIN_PATTERNS if _rank_file(folder, name).exists())
    added = json.loads((folder / "tokenizer.json").read_bytes())["added_tokens"]
    encoding = Encoding(
        folder.name,
        pat_str=PLAIN_PATTERNS[pattern],
        mergeable_ranks=load_tiktoken_bpe(str(_rank_file(folder, pattern))),
        special_tokens={token["content"]: token["id"] for token in added},
    )
    return encoding.encode(text, allowed_special="all")


def _rank_file(folder: Path, pattern: PatternName) -> Path:
    return folder / f"tokenizer.{pattern}.tiktoken"


def encode_with_gigatoken(folder: Path, text: str) -> list[int]:
    from gigatoken import Tokenizer

    ids: list[int] = Tokenizer(folder / "tokenizer.json").encode(text).tolist()
    return ids


def encode_with_lowtide(folder: Path, text: str) -> list[int]:
    from lowtide import Tokenizer

    return Tokenizer.load(folder).encode(text, special_in_text="token")


READERS: dict[str, Callable[[Path, str], list[int]]] = {
    "tokenizers": encode_with_tokenizers,
    "transformers": encode_with_transformers,
    "tiktoken": encode_with_tiktoken,
    "gigatoken": encode_with_gigatoken,
    "lowtide": encode_with_lowtide,
}


def first_other_reader(folder: Path, sample: str) -> tuple[str | None, int]:
    """Who reads the sample differently from `tokenizers`, if anyone, and how many ids there are."""
    expected = READERS["tokenizers"](folder, sample)
    for name in _installed_readers():
        ids = READERS[name](folder, sample)
        for place, (number, other) in enumerate(zip_longest(expected, ids)):
            if number != other:
                return f"id {place} is {number} for tokenizers and {other} for {name}", 0
    return None, len(expected)


def _installed_readers() -> list[str]:
    return [name for name in READERS if importlib.util.find_spec(name)]


def all_words(letters: str, *, longest: int) -> Iterator[bytes]:
    """One document with every word that the letters spell, each once."""
    lengths = range(1, longest + 1)
    words = ("".join(word) for length in lengths for word in product(letters, repeat=length))
    yield "\n".join(words).encode()


def all_runs(letters: str, *, longest: int) -> Iterator[bytes]:
    """One document with each letter repeated 1, 2, 3… times, each word once."""
    runs = (letter * length for letter in letters for length in range(1, longest + 1))
    yield "\n".join(runs).encode()


def make_generated(folder: Path, chosen: argparse.Namespace) -> Iterator[Text]:
    """Texts in which the order among equals decides, and few words as long as a book."""
    many, source = chosen.long_word_bytes, random.Random(0)
    size = f"{many / 1e6:g} MB"
    texts: dict[str, tuple[Iterator[bytes], int]] = {
        "30,000 tied words": (tied_words(30_000, 0), chosen.vocab_size),
        "all words of abc, tied": (all_words("abc", longest=9), chosen.vocab_size),
        "runs of letters": (repeated_letters(2000, 0), chosen.vocab_size),
        "all runs of ab, tied": (all_runs("ab", longest=1000), chosen.vocab_size),
        f"one letter, {size}": (iter([b"a" * many]), LONG_WORD_TOKENS),
        f"period of three, {size}": (iter([b"abc" * (many // 3)]), LONG_WORD_TOKENS),
        f"random letters, {size}": (_word(source, _LETTERS, many), LONG_WORD_TOKENS),
        f"random ideographs, {size}": (_word(source, _IDEOGRAPHS, many // 3), LONG_WORD_TOKENS),
    }
    for name, (documents, most_tokens) in texts.items():
        if chosen.only in name:
            path = folder / "generated.txt"
            write_documents(path, documents)
            yield _named(name, path, path, most_tokens)


def _word(source: random.Random, letters: Sequence[str], count: int) -> Iterator[bytes]:
    yield "".join(source.choices(letters, k=count)).encode()


def make_front(corpus: Path, folder: Path, chosen: argparse.Namespace) -> Text:
    """The first documents of a text; what stands behind the last separator is left out."""
    with corpus.open("rb") as file:
        data = file.read(chosen.megabytes * 10**6)
    end = data.rfind(SEPARATOR.encode())
    if end < 0:
        sys.exit(f"the front of {corpus} holds no {SEPARATOR}: pass more --megabytes")
    path = folder / "front.txt"
    path.write_bytes(data[: end + len(SEPARATOR)])
    return _named(f"{corpus.parent.name}/{corpus.name}", path, corpus, chosen.vocab_size)


def _named(name: str, path: Path, sampled: Path, most_tokens: int) -> Text:
    with sampled.open("rb") as file:
        file.seek(max(0, sampled.stat().st_size - SAMPLE_BYTES))
        sample = file.read().decode(errors="ignore")  # may begin inside a character
    return Text(name=name, path=path, most_tokens=most_tokens, sample=sample)


def compare(text: Text, wanted: Wanted, memory: str) -> bool:
    """Train with both, print a line of the table; returns whether nothing differs."""
    with tempfile.TemporaryDirectory(prefix="lowtide-exact-") as scratch:
        folder = Path(scratch) / "tokenizer"
        own = learn_with_lowtide(text, wanted, folder, memory)
        peer = learn_with_tokenizers(text, wanted)
        other, id_count = first_other_reader(folder, text.sample)
    difference = first_difference(own, peer)
    print(_row(text, wanted, own, peer, id_count), flush=True)
    for found in (difference, other):
        if found:
            print(f"{text.name}, {wanted.pattern}: {found}", file=sys.stderr, flush=True)
    return difference is None and other is None


def _row(text: Text, wanted: Wanted, own: Learnt, peer: Learnt, id_count: int) -> str:
    pairs = list(zip_longest(own.merges, peer.merges))
    same = sum(left == right for left, right in pairs)
    same_file = "same bytes" if own.file == peer.file else "DIFFERS"
    read = f"{id_count:,} ids by {len(_installed_readers())}" if id_count else "DIFFER"
    return (
        f"| {text.name} | {text.path.stat().st_size / 1e6:.1f} | {wanted.pattern} | {same:,} of {len(pairs):,} "
        f"| {same_file} | {read} | {own.seconds:.1f} | {peer.seconds:.1f} |"
    )


def choose() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpora", nargs="*", type=Path, metavar="FILE", help="text files")
    parser.add_argument("--generated", action="store_true", help="made-up texts, too")
    parser.add_argument("--megabytes", type=int, default=1000, help="of each file, from its front")
    parser.add_argument("--pattern", action="append", choices=list(PLAIN_PATTERNS))
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--special-token", action="append")
    parser.add_argument("--memory", default="256MiB", help="lowtide's budget")
    parser.add_argument("--long-word-bytes", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="made-up texts whose name contains this")
    chosen = parser.parse_args()
    if not (chosen.corpora or chosen.generated):
        parser.error("nothing to train on: pass a file, --generated or both")
    return chosen


def make_texts(chosen: argparse.Namespace, folder: Path) -> Iterator[Text]:
    """One after the other: each stands in the folder until the next is made."""
    for corpus in chosen.corpora:
        yield make_front(corpus, folder, chosen)
    if chosen.generated:
        yield from make_generated(folder, chosen)


def main() -> None:
    chosen = choose()
    special_tokens = tuple(chosen.special_token or [SEPARATOR])
    print(
        "| text | MB | pattern | merges equal | tokenizer.json | read alike | lowtide s | tokenizers s |"
    )
    print("|---|--:|---|--:|---|--:|--:|--:|")
    all_equal = True
    with tempfile.TemporaryDirectory(prefix="lowtide-exact-") as folder:
        for text in make_texts(chosen, Path(folder)):
            size = min(chosen.vocab_size, text.most_tokens)
            for pattern in chosen.pattern or PLAIN_PATTERNS:
                wanted = Wanted(pattern=pattern, vocab_size=size, special_tokens=special_tokens)
                all_equal = compare(text, wanted, chosen.memory) and all_equal
    sys.exit(0 if all_equal else 1)


if __name__ == "__main__":
    main()
