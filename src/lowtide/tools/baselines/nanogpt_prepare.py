"""nanoGPT's `data/openwebtext/prepare.py` on other files: split, map each document, copy to a memmap."""

from __future__ import annotations

import os
import sys

import numpy as np
from datasets import load_dataset  # type: ignore[import-not-found, import-untyped, unused-ignore]

from lowtide.tools.baselines.encoder import load_encoder
from lowtide.tools.baselines.progress import Progress

SHARDS = 1024


def main(tokenizer: str, out: str, progress_file: str, files: list[str]) -> None:
    encode, end_of_text, width = load_encoder(tokenizer)
    progress = Progress(progress_file, files)
    progress.begin("loading")
    dataset = load_dataset("json", data_files=files, cache_dir=f"{out}/cache")
    split_dataset = dataset["train"].train_test_split(test_size=0.0005, seed=2357, shuffle=True)
    split_dataset["val"] = split_dataset.pop("test")

    def process(example: dict[str, str]) -> dict[str, list[int] | int]:
        ids = encode(example["text"])
        ids.append(end_of_text)
        progress.add(example["text"])
        return {"ids": ids, "len": len(ids)}

    progress.begin("mapping")
    tokenized = split_dataset.map(process, remove_columns=["text"], num_proc=os.cpu_count())
    progress.begin("copying into the memmap")
    total = 0
    for split, dset in tokenized.items():
        length = int(np.sum(dset["len"], dtype=np.uint64))
        array = np.memmap(f"{out}/{split}.bin", dtype=width, mode="w+", shape=(length,))
        shards = min(SHARDS, len(dset))
        at = 0
        for index in range(shards):
            batch = dset.shard(num_shards=shards, index=index, contiguous=True)
            ids = np.concatenate(batch.with_format("numpy")["ids"])
            array[at : at + len(ids)] = ids
            at += len(ids)
        array.flush()
        total += length
    progress.end(total)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
