"""Trained folders as tests compare them, and the peer they must equal."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from lowtide.journal import LOG_NAME
from lowtide.settings import PatternName
from lowtide.tokenizer.patterns import PLAIN_PATTERNS

OF_ONE_RUN = ("run.json", LOG_NAME)
"""Time, peak and budget: the only files that may differ between two runs over the same corpus."""

Merges = list[tuple[str, str]]


def trained_bytes(folder: Path) -> dict[str, bytes]:
    """Every file that must be the same, by its path inside the folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in OF_ONE_RUN
    }


def read_trained(folder: Path) -> tuple[dict[str, int], Merges]:
    """Vocabulary and merges as the tokenizer.json in a folder spells them."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def train_with_tokenizers(
    documents: Sequence[str],
    *,
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    pattern: PatternName = "gpt2",
    min_frequency: int = 0,
) -> tuple[dict[str, int], Merges]:
    """What `tokenizers` learns from these documents, cut at special tokens first: it would not do so."""
    tokenizer = Tokenizer(models.BPE())
    if pattern == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(PLAIN_PATTERNS[pattern]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        min_frequency=min_frequency,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_cut_at(special_tokens, documents), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def _cut_at(tokens: Sequence[str], documents: Sequence[str]) -> list[str]:
    if not tokens:
        return list(documents)
    longest_first = sorted(tokens, key=len, reverse=True)
    cuts = re.compile("|".join(re.escape(token) for token in longest_first))
    return [piece for document in documents for piece in cuts.split(document)]
