"""nanoGPT's data/openwebtext/prepare.py: datasets.map in two processes, tiktoken, one memmap for all.

    python tokenize_nanogpt.py CORPUS.parquet VOCABULARY OUT

Left out: its split into train and val. tiktoken knows the ids of `gpt2` as `r50k_base`, too, and finds that
file in TIKTOKEN_CACHE_DIR. Its 1,024 batches are at most one for each document.
"""

from __future__ import annotations

import sys

import numpy as np
import tiktoken
from datasets import load_dataset

PROCESSES = 2
BATCHES = 1024
encoding = tiktoken.get_encoding("r50k_base")


def process(example: dict[str, str]) -> dict[str, object]:
    ids = encoding.encode_ordinary(example["text"])
    ids.append(encoding.eot_token)
    return {"ids": ids, "len": len(ids)}


def main(corpus: str, out: str) -> None:
    cache = f"{out}/cache"
    dataset = load_dataset("parquet", data_files=corpus, split="train", cache_dir=cache)
    tokenized = dataset.map(process, remove_columns=dataset.column_names, num_proc=PROCESSES)
    total = int(np.sum(tokenized["len"], dtype=np.uint64))
    tokens = np.memmap(f"{out}/train.bin", dtype=np.uint16, mode="w+", shape=(total,))
    batches, at = min(BATCHES, len(tokenized)), 0
    for number in range(batches):
        shard = tokenized.shard(num_shards=batches, index=number, contiguous=True)
        ids = np.concatenate(shard.with_format("numpy")["ids"])
        tokens[at : at + len(ids)] = ids
        at += len(ids)
    tokens.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3])
