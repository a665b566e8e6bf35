"""The ways that `tokenize.py` compares: what each reads, what runs it, and how its output is read back."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import corpus as corpora
from bench.environments import SCRIPTS, find_python, variables
from bench.measuring import Runs, Way
from bench.same_tokens import END_OF_TEXT, READERS, Content, Ids, say_sameness, summarize

SEPARATOR = "<|endoftext|>"
BASELINE = "gigatoken encode_files"
PARTS = 2
"""Peers that work on a file in each process get the corpus in two files."""
MOST_OFF = 0.001
"""The share of tokens that a known reason may explain; dolma's blanks are 0.00013 of the Linux source."""
TIKTOKEN_CACHE_NAME = "0ea1e91bbb3a60f729a8dc8f777fd2fc07cd8df4"
"""How tiktoken calls its copy of r50k_base.tiktoken: the sha1 of the address it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWay:
    """A script of `bench/peers`, in the environment of its peer."""

    name: str
    peer: str
    script: str
    reads: str
    """A file of the corpus, or `parts` of such files."""
    reader: str
    differs: str = ""
    """Why its tokens are known to be others; empty where they must be the same."""
    keeps_borders: bool = True
    """Whether the output tells where a document ends."""


PEER_WAYS = (
    PeerWay(
        name=BASELINE,
        peer="gigatoken",
        script="tokenize_gigatoken.py",
        reads="corpus.txt",
        reader="stream",
        keeps_borders=False,
    ),
    PeerWay(
        name="gigatoken, 8 MiB blocks",
        peer="gigatoken",
        script="tokenize_gigatoken_blocks.py",
        reads="corpus.txt",
        reader="stream",
        differs="cuts documents at block borders",
        keeps_borders=False,
    ),
    PeerWay(
        name="llm.c's fineweb.py way",
        peer="llmc",
        script="tokenize_llmc.py",
        reads="corpus.parquet",
        reader="llmc",
    ),
    PeerWay(
        name="nanoGPT's prepare.py way",
        peer="nanogpt",
        script="tokenize_nanogpt.py",
        reads="corpus.parquet",
        reader="stream",
    ),
    PeerWay(
        name="mosaicml-streaming MDSWriter",
        peer="streaming",
        script="tokenize_streaming.py",
        reads="corpus.parquet",
        reader="mds",
    ),
    PeerWay(
        name="litdata optimize",
        peer="litdata",
        script="tokenize_litdata.py",
        reads="parts",
        reader="litdata",
    ),
    PeerWay(
        name="datatrove DocumentTokenizer",
        peer="datatrove",
        script="tokenize_datatrove.py",
        reads="parts",
        reader="datatrove",
    ),
    PeerWay(
        name="dolma tokens",
        peer="dolma",
        script="tokenize_dolma.py",
        reads="parts",
        reader="dolma",
        differs="strips blanks around every text",
    ),
    PeerWay(
        name="Megatron's preprocess_data way",
        peer="megatron",
        script="tokenize_megatron.py",
        reads="corpus.jsonl",
        reader="megatron",
    ),
)


# The same documents for everybody


def make_quarter(corpus: Path, out: Path) -> Path:
    """The front of the corpus, which is shuffled, as a corpus of its own."""
    corpora.write(out, corpora.read(corpus), _text_bytes(corpus) // 4)
    return out


def make_parts(corpus: Path, out: Path) -> Path:
    """The corpus again in two files of each kind, with every other document in the second."""
    for number in range(PARTS):
        part = out / str(number)
        texts = _every_other(corpora.read(corpus), number)
        corpora.write(part, texts, sys.maxsize)
        for kind in ("jsonl", "parquet"):
            (part / f"corpus.{kind}").rename(out / f"part{number}.{kind}")
        shutil.rmtree(part)
    return out


def _every_other(texts: Iterator[str], number: int) -> Iterator[str]:
    return (text for at, text in enumerate(texts) if at % PARTS == number)


def write_vocabulary(folder: Path) -> Path:
    """GPT-2's vocabulary in the forms that peers open: ranks, tiktoken's cache, and Hugging Face's files."""
    from lowtide import Tokenizer
    from lowtide.tokenizer.vocabulary import load_vocabulary

    Tokenizer.load("gpt2").save(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    merges = content["model"]["merges"]
    content["model"]["merges"] = [" ".join(pair) for pair in merges]  # older releases read no pairs
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    ranks = load_vocabulary("gpt2").content
    (folder / "r50k_base.tiktoken").write_bytes(ranks)
    (folder / TIKTOKEN_CACHE_NAME).write_bytes(ranks)
    return folder


def encode_plainly(corpus: Path) -> Content:
    """What tiktoken makes of the corpus, document by document: what every way should have made of it."""
    return summarize(_plain_ids(corpus))


def _plain_ids(corpus: Path) -> Iterator[Ids]:
    import numpy as np
    import tiktoken

    from lowtide.tokenizer.patterns import PATTERNS
    from lowtide.tokenizer.vocabulary import load_vocabulary, parse_ranks

    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=PATTERNS["gpt2"],
        mergeable_ranks=parse_ranks(load_vocabulary("gpt2").content, name="gpt2"),
        special_tokens={SEPARATOR: END_OF_TEXT},
    )
    for text in corpora.read(corpus):
        yield np.array(encoding.encode_ordinary(text), dtype=np.uint16)


# Ways on one corpus


def own_ways(corpus: Path, memory: str) -> list[Way]:
    """lowtide on each of the three files."""
    kinds = {"text": "txt", "JSONL": "jsonl", "parquet": "parquet"}
    return [
        Way(
            name=f"lowtide, {name}",
            text_bytes=_text_bytes(corpus),
            command=functools.partial(_own_command, corpus / f"corpus.{kind}", memory),
        )
        for name, kind in kinds.items()
    ]


def _text_bytes(corpus: Path) -> int:
    return (corpus / "corpus.txt").stat().st_size


def _own_command(path: Path, memory: str, out: Path) -> list[str]:
    separator = ["--separator", SEPARATOR] if path.suffix == ".txt" else []
    command = [sys.executable, "-m", "lowtide", "tokenize", str(path), "--quiet"]
    return [*command, "--memory", memory, "--out", str(out / "tokens"), *separator]


def peer_ways(corpus: Path, parts: Path, vocabulary: Path, peers: Path | None) -> list[Way]:
    """Those whose environment is there."""
    pythons = {way.name: find_python(peers, way.peer) for way in PEER_WAYS}
    offline = {"TIKTOKEN_CACHE_DIR": str(vocabulary), "HF_HUB_OFFLINE": "1"}
    found = []
    for way in PEER_WAYS:
        source = parts if way.reads == "parts" else corpus / way.reads
        front = [str(pythons[way.name]), str(SCRIPTS / way.script), str(source), str(vocabulary)]
        if pythons[way.name] is not None:
            found.append(
                Way(
                    name=way.name,
                    text_bytes=_text_bytes(corpus),
                    command=functools.partial(_peer_command, front),
                    environment={**offline, **variables(way.peer)},
                )
            )
    return found


def _peer_command(front: list[str], out: Path) -> list[str]:
    return [*front, str(out)]


def say_tokens(way: Way, folder: Path, wanted: Content) -> str:
    """Whether the output holds the ids that it should: `equal`, or in which way it differs, and why."""
    peer_way = _find_peer_way(way)
    reader = READERS[peer_way.reader if peer_way else "lowtide"]
    found = summarize(reader(folder))
    said = say_sameness(found, wanted)
    if peer_way is None or not peer_way.differs or not said.startswith("differs"):
        return said
    if _is_explained(peer_way, found, wanted):
        return f"{said}: {peer_way.differs}"
    return f"{said}, more than is known of it"


def _find_peer_way(way: Way) -> PeerWay | None:
    return next((one for one in PEER_WAYS if one.name == way.name), None)


def _is_explained(peer_way: PeerWay, found: Content, wanted: Content) -> bool:
    """A known reason moves few tokens, and loses no document."""
    few = abs(found.tokens - wanted.tokens) <= MOST_OFF * wanted.tokens
    return few and (found.documents == wanted.documents or not peer_way.keeps_borders)


def is_wrong(runs: Runs) -> bool:
    """Other tokens than a known reason explains, or a failure of lowtide; a peer may fail."""
    surprising = runs.said.startswith("differs") and ": " not in runs.said
    return surprising or (bool(runs.failure) and _find_peer_way(runs.way) is None)
