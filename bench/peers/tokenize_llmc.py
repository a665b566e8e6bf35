"""llm.c's dev/data/fineweb.py: a pool of two processes, tiktoken, shards of 100 M tokens with a header.

    python tokenize_llmc.py CORPUS.parquet VOCABULARY OUT

Like there, the end-of-text stands before each document, a shard is filled in memory, and it is handed to the
writer as a list. Left out: the first shard is not called val.
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import numpy as np
import tiktoken
from datasets import load_dataset

PROCESSES = 2
SHARD_TOKENS = 10**8
MAGIC, VERSION = 20240520, 1
encoding = tiktoken.get_encoding("r50k_base")


def tokenize(document: dict[str, str]) -> np.ndarray:
    tokens = [encoding.eot_token]
    tokens.extend(encoding.encode_ordinary(document["text"]))
    ids = np.array(tokens)
    if not (ids < 2**16).all():
        raise ValueError("a token does not fit into 16 bits")
    return ids.astype(np.uint16)


def write_datafile(path: Path, tokens: list[int]) -> None:
    header = np.zeros(256, dtype=np.int32)
    header[:3] = MAGIC, VERSION, len(tokens)
    with path.open("wb") as file:
        file.write(header.tobytes())
        file.write(np.array(tokens, dtype=np.uint16).tobytes())


def main(corpus: str, out: Path) -> None:
    documents = load_dataset(
        "parquet", data_files=corpus, split="train", cache_dir=str(out / "cache")
    )
    shard, count, number = np.empty(SHARD_TOKENS, dtype=np.uint16), 0, 0
    with multiprocessing.Pool(PROCESSES) as pool:
        for tokens in pool.imap(tokenize, documents, chunksize=16):
            fits = min(len(tokens), SHARD_TOKENS - count)
            shard[count : count + fits] = tokens[:fits]
            count += fits
            if fits < len(tokens):
                write_datafile(out / f"train_{number:06d}.bin", shard.tolist())
                number, count = number + 1, len(tokens) - fits
                shard[:count] = tokens[fits:]
        if count:
            write_datafile(out / f"train_{number:06d}.bin", shard[:count].tolist())
        pool.close()
        pool.join()  # so that the time of its processes is counted


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[3]))
