"""The loop of Megatron-LM's tools/preprocess_data.py, which is not in the wheel, with the wheel's own builder.

    python tokenize_megatron.py CORPUS.jsonl VOCABULARY OUT

A pool of two workers takes lines of JSON 32 at a time, each worker with a Hugging Face tokenizer of its own,
and the first process adds document after document to IndexedDatasetBuilder: `--workers 2 --append-eod` there.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from transformers import GPT2TokenizerFast

WORKERS = 2


class Encoder:
    """One for each worker; the class holds its tokenizer."""

    tokenizer: GPT2TokenizerFast

    def __init__(self, vocabulary: str) -> None:
        self.vocabulary = vocabulary

    def initialize(self) -> None:
        Encoder.tokenizer = load_tokenizer(self.vocabulary)

    def encode(self, line: str) -> list[int]:
        ids = Encoder.tokenizer(json.loads(line)["text"])["input_ids"]
        if ids:
            ids.append(Encoder.tokenizer.eos_token_id)
        return ids


def load_tokenizer(vocabulary: str) -> GPT2TokenizerFast:
    return GPT2TokenizerFast.from_pretrained(vocabulary)


def main(corpus: str, vocabulary: str, out: str) -> None:
    size = len(load_tokenizer(vocabulary))
    builder = IndexedDatasetBuilder(f"{out}/text_document.bin", dtype=DType.optimal_dtype(size))
    encoder = Encoder(vocabulary)
    with Path(corpus).open(encoding="utf-8") as lines:
        pool = multiprocessing.Pool(WORKERS, initializer=encoder.initialize)
        for ids in pool.imap(encoder.encode, lines, 32):
            builder.add_document(ids, [len(ids)])
    builder.finalize(f"{out}/text_document.idx")
    pool.close()
    pool.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
