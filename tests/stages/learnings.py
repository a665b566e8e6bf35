"""What a run learnt, made by hand: merges with the number of tokens that each of them saved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowtide.settings import TokenizerSettings
from lowtide.stages.learn_run import Learning
from lowtide.tokenizer.byte_pairs import bytes_in_order
from lowtide.tokenizer.merge_pairs import STEP
from lowtide.tokenizer.word_runs import WordTotals

END_OF_TEXT = "<|endoftext|>"


def make_learning(
    joined: Sequence[int],
    *,
    text_bytes: int,
    sizes: Sequence[int],
    merges: Sequence[tuple[bytes, bytes]] = (),
    special_tokens: Sequence[str] = (END_OF_TEXT,),
) -> Learning:
    """A corpus of `text_bytes` in words of five bytes. Where merges are not named, all are of one pair."""
    steps = np.zeros(len(joined), STEP)
    steps["joined"] = joined
    numbers = {bytes([byte]): number for number, byte in enumerate(bytes_in_order())}
    for step, (left, right) in enumerate(merges):
        steps[step]["left"], steps[step]["right"] = numbers[left], numbers[right]
        numbers[left + right] = len(numbers)
    return Learning(
        settings=TokenizerSettings(vocab_size=tuple(sizes), special_token=tuple(special_tokens)),
        steps=steps,
        totals=WordTotals(
            distinct_words=10,
            words=max(1, text_bytes // 5),
            text_bytes=text_bytes,
            distinct_bytes=50,
            longest_bytes=9,
        ),
        single_byte_words=0,
        is_exhausted=len(joined) < max(sizes) - len(special_tokens) - 256,
        recounts=1,
    )
