"""The encoder that all baselines share: tiktoken for ranks, tokenizers for a tokenizer.json."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

Encode = Callable[[str], list[int]]


def load_encoder(folder: str) -> tuple[Encode, int, str]:
    """A function from text to a list of ids, the id that ends a document, and numpy's name for an id."""
    facts = json.loads((Path(folder) / "encoding.json").read_text(encoding="utf-8"))
    width = "uint16" if facts["size"] <= 1 << 16 else "uint32"
    if facts["kind"] == "json":
        return _load_json(Path(folder) / facts["file"]), facts["end_of_text"], width
    import tiktoken

    lines = (Path(folder) / facts["file"]).read_bytes().splitlines()
    pairs = (line.split() for line in lines if line)
    encoding = tiktoken.Encoding(
        facts["name"],
        pat_str=facts["pattern"],
        mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in pairs},
        special_tokens=facts["special_tokens"],
    )
    return encoding.encode_ordinary, facts["end_of_text"], width


def _load_json(path: Path) -> Encode:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode
