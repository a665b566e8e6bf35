"""gigatoken on the whole file, as in its README, and all ids to one file: no end-of-text, no borders.

Called as `python tokenize_gigatoken.py CORPUS.txt VOCABULARY OUT`.
"""

from __future__ import annotations

import sys

import gigatoken
import numpy as np

text, vocabulary, out = sys.argv[1:]
tokenizer = gigatoken.Tokenizer.from_tiktoken(f"{vocabulary}/r50k_base.tiktoken")
source = gigatoken.TextFileSource([text], separator=b"<|endoftext|>")
ids = tokenizer.encode_files(source).layout.content.data
ids.astype(np.uint16).tofile(f"{out}/train.bin")
