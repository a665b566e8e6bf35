"""The script that everybody writes first: all ids in one Python list, turned into an array at the end.

A list holds 8 bytes for each id and Python 28 more for each of its numbers.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from lowtide.tools.baselines.encoder import load_encoder
from lowtide.tools.baselines.progress import Progress


def main(tokenizer: str, out: str, progress_file: str, files: list[str]) -> None:
    encode, end_of_text, width = load_encoder(tokenizer)
    progress = Progress(progress_file, files)
    ids: list[int] = []
    for name in files:
        with open(name, encoding="utf-8") as file:  # noqa: PTH123 - as it is written
            for line in file:
                text = json.loads(line)["text"]
                ids.extend(encode(text))
                ids.append(end_of_text)
                progress.add(text)
    progress.begin("making the array")
    np.array(ids, dtype=width).tofile(f"{out}/train.bin")
    progress.end(len(ids))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
