"""gigatoken over blocks of 8 MiB, the least that a program can do: documents are cut where a block ends.

Called as `python tokenize_gigatoken_blocks.py CORPUS.txt VOCABULARY OUT`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gigatoken
import numpy as np

text, vocabulary, out = sys.argv[1:]
tokenizer = gigatoken.Tokenizer.from_tiktoken(f"{vocabulary}/r50k_base.tiktoken")
with Path(text).open("rb", buffering=0) as file, Path(out, "train.bin").open("wb") as tokens:
    while block := file.read(8 << 20):
        found = tokenizer.encode_batch(gigatoken.BytesSource(block, b"<|endoftext|>"))
        found.layout.content.data.astype(np.uint16).tofile(tokens)
