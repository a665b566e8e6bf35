"""rustbpe, nanochat's trainer; it breaks ties in a way of its own.

Called as `python train_rustbpe.py CORPUS.txt VOCAB_SIZE OUT PATTERN EXPRESSION`.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import rustbpe
from train_documents import documents

text, size, out, _, expression = sys.argv[1:]
tokenizer = rustbpe.Tokenizer()
without_special = int(size) - 1
tokenizer.train_from_iterator(documents(text), without_special, buffer_size=256, pattern=expression)
with Path(out, "tokens.txt").open("wb") as file:
    file.writelines(
        base64.b64encode(bytes(token)) + b"\n" for token, _ in tokenizer.get_mergeable_ranks()
    )
