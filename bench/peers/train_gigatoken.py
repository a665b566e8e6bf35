"""gigatoken.train_bpe, with ties broken as tokenizers breaks them.

Called as `python train_gigatoken.py CORPUS.txt VOCAB_SIZE OUT PATTERN EXPRESSION`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gigatoken

text, size, out, _, _ = sys.argv[1:]
source = gigatoken.TextFileSource([text], separator=b"<|endoftext|>")
_, merges = gigatoken.train_bpe(source, int(size), ["<|endoftext|>"], tie_breaking="huggingface")
with Path(out, "merges.hex").open("w", encoding="ascii") as file:
    file.writelines(f"{left.hex()} {right.hex()}\n" for left, right in merges)
