"""litdata.optimize with TokensLoader, as in its README for pretraining: two workers over two files, tiktoken.

Called as `python tokenize_litdata.py FOLDER_OF_JSONL VOCABULARY OUT`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import tiktoken
import torch
from litdata import TokensLoader, optimize

WORKERS = 2
CHUNK_TOKENS = 2049 * 8012


def tokenize(path: str) -> Iterator[torch.Tensor]:
    encoding = tiktoken.get_encoding("r50k_base")
    with Path(path).open(encoding="utf-8") as lines:
        for line in lines:
            ids = encoding.encode_ordinary(json.loads(line)["text"])
            ids.append(encoding.eot_token)
            yield torch.tensor(ids, dtype=torch.uint16)


if __name__ == "__main__":
    parts, _, out = sys.argv[1:]
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = f"{out}/cache"
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = f"{out}/data"
    optimize(
        fn=tokenize,
        inputs=[str(path) for path in sorted(Path(parts).glob("*.jsonl"))],
        output_dir=f"{out}/tokens",
        chunk_size=CHUNK_TOKENS,
        item_loader=TokensLoader(),
        num_workers=WORKERS,
        verbose=False,
    )
