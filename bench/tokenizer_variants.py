"""Tokenizer.json files of many forms: ids are those of tokenizers, or the run is refused.

    python -m bench.tokenizer_variants --seed 1

Each variant is a pre-tokenizer, a normalizer, added tokens and a model, made from GPT-2's first tokens. It
tokenizes first documents of 100 bytes to 5 MB with `--memory 256MiB` inside a memory cgroup of 256 MiB. The
ids are compared with those of `tokenizers.Tokenizer.encode` on each whole document.

    equal     exit 0, and the ids are those of tokenizers
    refused   exit 1, 2 or 3 with `error:` and `hint:`, and no dataset stands
    WRONG, ABORT, OOM, BROKEN   anything else; the command then ends with 1
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import tokenizers

from lowtide.shards.read import open_dataset
from lowtide.tokenizer.patterns import recognise
from lowtide.units import parse_bytes
from tests.boxes import drop_from_page_cache, how_boxes_work, run_in_box
from tests.tokenizer_json import Json, added_token, tokenizer_json

MEMORY = "256MiB"
TOKENS = 4000
SIZES = (100, 4_000, 60_000, 400_000, 1_500_000, 5_000_000)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = CL100K.replace("{1,3}", "")
assert recognise(CL100K) == "cl100k"


def byte_level(*, regex: bool, space: bool = False) -> Json:
    """The step that spells text in bytes, with or without GPT-2's pattern, with or without a blank in front."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": space,
        "trim_offsets": True,
        "use_regex": regex,
    }


def split(
    pattern: str, behavior: str = "Isolated", *, invert: bool = False, kind: str = "Regex"
) -> Json:
    """The step that cuts by an expression."""
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def steps(*parts: Json) -> Json:
    """One after the other."""
    return {"type": "Sequence", "pretokenizers": list(parts)}


PLAIN = byte_level(regex=False)
PRE_TOKENIZERS: dict[str, Json | None] = {
    "bytes": byte_level(regex=True),
    "bytes, no pattern": PLAIN,
    "bytes, blank in front": byte_level(regex=True, space=True),
    "cl100k": steps(split(CL100K), PLAIN),
    "qwen": steps(split(QWEN), PLAIN),
    "cl100k, inverted removed": steps(split(CL100K, "Removed", invert=True), PLAIN),
    "cl100k, removed": steps(split(CL100K, "Removed"), PLAIN),
    "cl100k, contiguous": steps(split(CL100K, "Contiguous"), PLAIN),
    "cl100k, merged with previous": steps(split(CL100K, "MergedWithPrevious"), PLAIN),
    "cl100k, merged with next": steps(split(CL100K, "MergedWithNext"), PLAIN),
    "cl100k, isolated inverted": steps(split(CL100K, invert=True), PLAIN),
    "cl100k, blank in front": steps(split(CL100K), byte_level(regex=False, space=True)),
    "cl100k, then gpt2": steps(split(CL100K), byte_level(regex=True)),
    "bytes, then cl100k": steps(PLAIN, split(CL100K)),
    "gpt2, then cl100k": steps(byte_level(regex=True), split(CL100K)),
    "cl100k, no bytes": split(CL100K),
    "digits": steps({"type": "Digits", "individual_digits": True}, byte_level(regex=True)),
    "punctuation": steps({"type": "Punctuation", "behavior": "Isolated"}, byte_level(regex=True)),
    "blanks": steps({"type": "WhitespaceSplit"}, PLAIN),
    "blanks as text": steps(split(" ", "MergedWithNext", kind="String"), PLAIN),
    "an own pattern": steps(split(r"\p{L}+|\p{N}|[^\p{L}\p{N}]+"), PLAIN),
    "an own pattern, contiguous": steps(split(r"\p{P}", "Contiguous"), PLAIN),
    "two splits": steps(split(r"\p{N}{1,3}"), split(CL100K), PLAIN),
    "nested": steps(steps(split(QWEN)), PLAIN),
    "an unknown key": byte_level(regex=True) | {"spare": 1},
    "none": None,
}
NORMALIZERS: dict[str, Json | None] = {
    "none": None,
    "NFC": {"type": "NFC"},
    "NFKD": {"type": "NFKD"},
    "lower case": {"type": "Lowercase"},
    "blanks doubled": {"type": "Replace", "pattern": {"String": " "}, "content": "  "},
    "in front": {"type": "Prepend", "prepend": "> "},
    "stripped": {"type": "Strip", "strip_left": True, "strip_right": True},
    "two": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]},
}
ADDED: dict[str, list[Json]] = {
    "none": [],
    "special": [added_token("<|im_start|>", TOKENS, special=True)],
    "ordinary": [added_token("teigr", TOKENS)],
    "normalized": [added_token("Form", TOKENS, normalized=True)],
    "eats blanks": [added_token("<tab>", TOKENS) | {"lstrip": True, "rstrip": True}],
    "whole words": [added_token("word", TOKENS) | {"single_word": True}],
    "overlapping": [added_token("öß", TOKENS), added_token("ße", TOKENS + 1)],
    "a gap in ids": [added_token("<far>", TOKENS + 100)],
    "an unknown key": [added_token("<tok>", TOKENS) | {"spare": 1}],
}
MODELS: dict[str, Json] = {
    "plain": {},
    "ignore_merges": {"ignore_merges": True},
    "byte_fallback": {"byte_fallback": True},
    "unk": {"unk_token": "!"},
    "fewer merges": {"merges": "every second"},
    "fewer merges, ignore_merges": {"merges": "every second", "ignore_merges": True},
    "a merge twice": {"merges": "first again"},
    "word suffix": {"end_of_word_suffix": "</w>"},
    "a byte missing": {"vocab": "without a byte"},
    "a byte missing, unk": {"vocab": "without a byte", "unk_token": "!"},
    "an unknown key": {"spare": None},
    "an id of 2^31": {"vocab": "huge id"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A tokenizer.json by the names of its parts."""

    pre_tokenizer: str = "bytes"
    normalizer: str = "none"
    added: str = "none"
    model: str = "plain"

    @property
    def name(self) -> str:
        """`cl100k, removed · NFC · none · unk`."""
        return " · ".join((self.pre_tokenizer, self.normalizer, self.added, self.model))

    def content(self) -> bytes:
        """The file."""
        made: Json = json.loads(_base())
        made["pre_tokenizer"] = PRE_TOKENIZERS[self.pre_tokenizer]
        made["normalizer"] = NORMALIZERS[self.normalizer]
        made["added_tokens"] = ADDED[self.added]
        made["model"] = _changed(made["model"], MODELS[self.model])  # type: ignore[arg-type]
        return json.dumps(made).encode()


@lru_cache(maxsize=1)
def _base() -> bytes:
    """GPT-2's first tokens, and the merges among them."""
    return json.dumps(tokenizer_json(tokens=TOKENS)).encode()


def _changed(model: Json, change: Json) -> Json:
    vocab, merges = dict(model["vocab"]), list(model["merges"])  # type: ignore[call-overload]
    if change.get("merges") == "every second":
        merges = [pair for at, pair in enumerate(merges) if at % 2 or len("".join(pair)) == 2]
        known = set(vocab)
        made = {text for text in vocab if len(text) == 1}
        kept = []
        for left, right in merges:
            if left in made and right in made and left + right in known:
                made.add(left + right)
                kept.append([left, right])
        merges = kept
    if change.get("merges") == "first again":
        merges = [*merges, merges[0]]
    if change.get("vocab") == "without a byte":
        lost = {text for text in vocab if "¶" in text}  # the second byte of ö
        vocab = {text: at for at, text in enumerate(t for t in vocab if t not in lost)}
        merges = [pair for pair in merges if "".join(pair) in vocab]
    if change.get("vocab") == "huge id":
        vocab["never met"] = 1 << 31
    plain = {key: value for key, value in change.items() if key not in ("vocab", "merges")}
    return model | plain | {"vocab": vocab, "merges": merges}


def choose_variants(source: random.Random, count: int) -> list[Variant]:
    """Each pre-tokenizer, each normalizer, each list of added tokens and each model; then mixtures of them."""
    chosen = [Variant(pre_tokenizer=name) for name in PRE_TOKENIZERS]
    chosen += [Variant(normalizer=name) for name in list(NORMALIZERS)[1:]]
    chosen += [Variant(pre_tokenizer="cl100k", added=name) for name in list(ADDED)[1:]]
    chosen += [Variant(model=name) for name in list(MODELS)[1:]]
    while len(chosen) < count:
        mixed = Variant(
            pre_tokenizer=source.choice(list(PRE_TOKENIZERS)),
            normalizer=source.choice(list(NORMALIZERS)),
            added=source.choice(list(ADDED)[:-2]),
            model=source.choice(list(MODELS)[:-4]),
        )
        if mixed not in chosen:
            chosen.append(mixed)
    return chosen[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one run."""

    variant: str
    document: str
    verdict: str
    detail: str = ""
    peak_bytes: int = 0


KINDS = ("code", "prose", "chinese", "digits", "one letter", "blanks", "random", "marks")


def make_text(source: random.Random, kind: str, size: int) -> str:
    """About so many bytes of one kind."""
    match kind:
        case "code":
            words = ["def f(x):\n", "    return x.items()  # it's\n", "\n\n", "a = 10000\n"]
        case "prose":
            words = ["Die Dateigröße ", "word ", "the Form ", "ＡＢ ﬁn. ", "12,345 ", "<tab> abc\n"]
        case "chinese":
            words = [chr(source.randrange(0x4E00, 0x9FA5)) for _ in range(500)] + ["，", "。\n"]
        case "digits":
            words = [str(number) for number in range(10)]
        case "one letter":
            words = ["a"]
        case "blanks":
            words = [" ", "  ", "\n", "\t", "x"]
        case "marks":
            words = ["e\u0301", "\ufdfa", "각", "👍🏽"]
        case _:
            words = [chr(source.randrange(33, 0x250)) for _ in range(300)]
    typical = "".join(source.choices(words, k=400))
    text = typical * (size // len(typical.encode()) + 1)
    return text.encode()[:size].decode(errors="ignore")


def try_variant(variant: Variant, documents: list[str], shown: str, folder: Path) -> Outcome:
    """One run in its box, and its ids against those of tokenizers."""
    (folder / "tokenizer.json").write_bytes(content := variant.content())
    source, out = folder / "input.jsonl", folder / "out"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    drop_from_page_cache(source)
    command = [sys.executable, "-m", "lowtide", "tokenize", str(source), "--out", str(out)]
    command += ["--tokenizer", str(folder / "tokenizer.json"), "--memory", MEMORY, "--eot", "none"]
    command += ["--val", "0", "--separator", "file"]
    result = run_in_box(command, limit_bytes=parse_bytes(MEMORY), timeout=600)
    verdict, detail = "equal", ""
    if result.oom_kills:
        verdict = "OOM"
    elif result.returncode in (-6, 134):
        verdict = "ABORT"
    elif result.returncode in (1, 2, 3):
        says = "error:" in result.stderr and "hint:" in result.stderr
        verdict = "refused" if says and not (out / "lowtide.json").exists() else "BROKEN"
        detail = next((ln for ln in result.stderr.splitlines() if ln.startswith("error:")), "")
    elif result.returncode:
        verdict, detail = "BROKEN", f"exit {result.returncode}"
    elif not _are_equal(content, documents, out):
        verdict = "WRONG"
    return Outcome(
        variant=variant.name,
        document=shown,
        verdict=verdict,
        detail=detail.replace(str(folder), "…")[:150],
        peak_bytes=result.peak_private_bytes,
    )


def _are_equal(content: bytes, documents: list[str], out: Path) -> bool:
    reference = tokenizers.Tokenizer.from_str(content.decode())
    reference.encode_special_tokens = True  # names in a text are text
    expected = [reference.encode(text, add_special_tokens=False).ids for text in documents]
    tokens = open_dataset(out).splits["train"]
    found = tokens.read(0, tokens.tokens)
    return np.array_equal(found, np.concatenate([np.array(ids, np.uint32) for ids in expected]))


@dataclass(slots=True)
class Campaign:
    """All variants, each with several first documents."""

    seed: int
    variants: int
    documents: int
    largest_bytes: int = SIZES[-1]
    begin: int = 0
    """The first variant to try: to go on with a campaign that was stopped."""
    found: list[Outcome] = field(default_factory=list)

    def run(self) -> Iterator[Outcome]:
        """One outcome for each variant and first document."""
        source = random.Random(self.seed)
        sizes = [size for size in SIZES if size <= self.largest_bytes]
        pairs = [(kind, size) for size in sizes for kind in KINDS]
        source.shuffle(pairs)
        chosen = choose_variants(source, self.variants)
        for number, variant in list(enumerate(chosen))[self.begin :]:
            for at in range(self.documents):
                kind, size = pairs[(number * self.documents + at) % len(pairs)]
                first = make_text(source, kind, size)
                with tempfile.TemporaryDirectory(prefix="lowtide-variants-") as folder:
                    outcome = try_variant(
                        variant,
                        [first, "Dateigröße, the Form of a word.", "x" * 40],
                        f"{size:,} bytes of {kind}",
                        Path(folder),
                    )
                self.found.append(outcome)
                yield outcome

    @property
    def bad(self) -> list[Outcome]:
        """Those that must not be."""
        return [one for one in self.found if one.verdict not in ("equal", "refused")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--variants", type=int, default=64)
    parser.add_argument("--documents", type=int, default=2)
    parser.add_argument("--begin", type=int, default=0, help="leave out so many variants")
    chosen = parser.parse_args()
    campaign = Campaign(
        seed=chosen.seed,
        variants=chosen.variants,
        documents=chosen.documents,
        begin=chosen.begin,
    )
    print(f"budget {MEMORY}, box: {how_boxes_work()}, tokenizers {tokenizers.__version__}\n")
    print("| pre-tokenizer · normalizer · added · model | first document | outcome | peak |")
    print("|---|---|---|--:|")
    for one in campaign.run():
        peak = f"{one.peak_bytes >> 20} MiB"
        verdict = f"{one.verdict} {one.detail}".strip()
        print(f"| {one.variant} | {one.document} | {verdict} | {peak} |", flush=True)
    counts = Counter(one.verdict for one in campaign.found)
    print("\n" + ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items())))
    raise SystemExit(1 if campaign.bad else 0)


if __name__ == "__main__":
    main()
