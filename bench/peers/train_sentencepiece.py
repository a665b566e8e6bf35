"""sentencepiece's BPE: same size, another thing. Words are cut at blanks, letters are characters, not bytes.

    python train_sentencepiece.py CORPUS.txt VOCAB_SIZE OUT PATTERN EXPRESSION

Set as for Llama (byte_fallback, no normalisation, digits split, blanks kept), with two threads, on every line:
without `input_sentence_size` it holds all of them in memory. A line beyond max_sentence_length is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import sentencepiece
from train_documents import documents

THREADS = 2


def lines(text: str) -> Iterator[str]:
    for document in documents(text):
        yield from filter(None, document.split("\n"))


if __name__ == "__main__":
    text, size, out, _, _ = sys.argv[1:]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines(text),
        model_prefix=f"{out}/tokenizer",
        vocab_size=int(size),
        model_type="bpe",
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        max_sentence_length=1 << 16,
        train_extremely_large_corpus=True,
        num_threads=THREADS,
        minloglevel=2,
    )
