"""Hugging Face datasets: load, map in batches over all cores, save. Arrow files on disk, a batch in memory."""

from __future__ import annotations

import os
import sys

import pyarrow.compute as pc
from datasets import load_dataset  # type: ignore[import-not-found, import-untyped, unused-ignore]

from lowtide.tools.baselines.encoder import load_encoder
from lowtide.tools.baselines.progress import Progress

Columns = dict[str, list[str]]


def main(tokenizer: str, out: str, progress_file: str, files: list[str]) -> None:
    encode, end_of_text, _ = load_encoder(tokenizer)
    progress = Progress(progress_file, files)
    progress.begin("loading")
    data = load_dataset("json", data_files=files, split="train", cache_dir=f"{out}/cache")

    def tokenize_batch(batch: Columns) -> dict[str, list[list[int]]]:
        rows = []
        for text in batch["text"]:
            rows.append([*encode(text), end_of_text])
            progress.add(text)
        progress.flush()
        return {"input_ids": rows}

    progress.begin("mapping")
    data = data.map(
        tokenize_batch, batched=True, num_proc=os.cpu_count(), remove_columns=data.column_names
    )
    progress.begin("saving")
    data.save_to_disk(f"{out}/tokens")
    lengths = pc.list_value_length(data.data.column("input_ids"))  # type: ignore[attr-defined, unused-ignore]
    progress.end(pc.sum(lengths).as_py())  # type: ignore[attr-defined, unused-ignore]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
