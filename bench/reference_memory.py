"""What the reference encoders take for each byte of a document, by their form and the kind of text.

    python bench/reference_memory.py

Prints, for each form, the least and the most of all kinds of text, as the table in docs/budget.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import random
from contextlib import closing

from bench.tokenizer_variants import KINDS, Variant, make_text
from lowtide.tokenizer.reference_apart import ReferenceApart
from lowtide.tokenizer.vocabulary import Vocabulary, from_json, load_vocabulary
from lowtide.units import GIB

FORMS = {
    "tokenizers, `ByteLevel`": Variant(),
    "tokenizers, without a pattern": Variant(pre_tokenizer="bytes, no pattern"),
    "tokenizers, NFKD": Variant(normalizer="NFKD"),
    "tokenizers, each digit apart": Variant(pre_tokenizer="digits"),
    "tokenizers, blanks doubled": Variant(normalizer="blanks doubled"),
    "tiktoken": None,
}
LIGATURES = "U+FDFA"
"""One letter that NFKD makes eighteen of."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=600_000, help="length of each document")
    size = parser.parse_args().bytes
    texts = {kind: make_text(random.Random(1), kind, size).encode() for kind in KINDS}
    texts[LIGATURES] = "\ufdfa".encode() * (size // 3)
    print("| reference | least | most |\n|---|--:|--:|")
    for form, variant in FORMS.items():
        vocabulary = from_json(variant.content(), name=form) if variant else load_vocabulary("gpt2")
        taken = {kind: bytes_per_byte(vocabulary, text) for kind, text in texts.items()}
        least, most = min(taken, key=taken.__getitem__), max(taken, key=taken.__getitem__)
        print(f"| {form} | {taken[least]:.0f} ({least}) | {taken[most]:.0f} ({most}) |", flush=True)


def bytes_per_byte(vocabulary: Vocabulary, text: bytes) -> float:
    """Memory for each byte of a document, in a new process."""
    with closing(ReferenceApart(vocabulary, "text", allowance_bytes=4 * GIB)) as reference:
        reference.encode(b"")
        before_bytes = reference.peak_bytes
        reference.encode(text)
        return (reference.peak_bytes - before_bytes) / len(text)


if __name__ == "__main__":
    main()
