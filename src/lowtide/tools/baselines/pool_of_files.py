"""A pool whose workers each read a whole file and return its ids as a list: fast, until all have arrived."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys

import numpy as np

from lowtide.tools.baselines.encoder import load_encoder
from lowtide.tools.baselines.progress import Progress


def tokenize_file(job: tuple[str, str, str, list[str]]) -> list[int]:
    """The ids of one file."""
    name, tokenizer, progress_file, files = job
    encode, end_of_text, _ = load_encoder(tokenizer)
    progress = Progress(progress_file, files)
    with open(name, encoding="utf-8") as file:  # noqa: PTH123 - as it is written
        lines = file.read().splitlines()
    ids: list[int] = []
    for line in lines:
        text = json.loads(line)["text"]
        ids.extend(encode(text))
        ids.append(end_of_text)
        progress.add(text)
    progress.flush()
    return ids


def main(tokenizer: str, out: str, progress_file: str, files: list[str]) -> None:
    _, _, width = load_encoder(tokenizer)
    jobs = [(name, tokenizer, progress_file, files) for name in files]
    # A fork leaves no semaphore behind when everything is killed.
    start = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    with multiprocessing.get_context(start).Pool(os.cpu_count()) as pool:
        found = pool.map(tokenize_file, jobs, chunksize=1)
    Progress(progress_file, files).begin("joining the lists")
    ids = np.concatenate([np.array(part, dtype=width) for part in found])
    ids.tofile(f"{out}/train.bin")
    Progress(progress_file, files).end(len(ids))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
