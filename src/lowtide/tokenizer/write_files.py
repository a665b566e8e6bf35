"""A vocabulary as the files that others open: each a pure function from `BytePairs` to bytes.

tokenizer.json               tokenizers, transformers, gigatoken; the very bytes that tokenizers would save
tokenizer_config.json        what transformers.AutoTokenizer wants to find beside it
vocab.json, merges.txt       GPT-2's own form
tokenizer.PATTERN.tiktoken   ranks for tiktoken; the pattern stands in the name, special tokens nowhere

A rank file cannot name special tokens. Whoever gives one to tiktoken passes them as `special_tokens`;
lowtide reads them from the tokenizer.json that lies in the same folder.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from lowtide.errors import UsageError
from lowtide.tokenizer.byte_pairs import BytePairs, spell, unspell
from lowtide.tokenizer.hugging_face import find_end_of_text
from lowtide.tokenizer.patterns import PatternName
from lowtide.tokenizer.split_words import PLAIN_PATTERNS

TRAINED_MANIFEST_NAME = "lowtide-tokenizer.json"
"""Lies beside these files where they were trained here, and knows their digests."""
CONFIG_NAME = "tokenizer_config.json"
MERGES_HEADER = "#version: 0.2"
PATTERN_IN_HEADER = " - pattern: "
"""Follows the version where the pattern is not GPT-2's; every reader skips the whole first line."""

_NOTHING_EATEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def tokenizer_files(pairs: BytePairs, *, end_of_text: int | None = None) -> dict[str, bytes]:
    """Every file by its name, to be written in this order: a folder with a tokenizer.json has them all.

    An `end_of_text` of None is the special token with a usual name for it, if there is one.
    The rank file is left out where tiktoken would give other ids than tokenizers (`first_disagreement`).
    That never happens to a vocabulary that was learnt, only to some that were put together by hand.
    """
    refuse_spelled_alike(pairs)
    ranks_agree = first_disagreement(pairs) is None
    return {
        **({rank_file_name(pairs.pattern): tiktoken_ranks(pairs)} if ranks_agree else {}),
        "merges.txt": merges_txt(pairs),
        "vocab.json": json.dumps(_by_id(pairs)).encode(),
        CONFIG_NAME: tokenizer_config(pairs, end_of_text),
        "tokenizer.json": tokenizer_json(pairs),
    }


def rank_file_name(pattern: PatternName) -> str:
    """`tokenizer.gpt2.tiktoken`: nothing inside the file says how words are cut."""
    return f"tokenizer.{pattern}.tiktoken"


def tokenizer_json(pairs: BytePairs) -> bytes:
    """A tokenizer.json whose words are cut by the plain pattern and merged by rank."""
    file = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": name, **_NOTHING_EATEN, "special": True}
            for name, number in sorted(pairs.special_tokens.items(), key=lambda item: item[1])
        ],
        "normalizer": None,
        "pre_tokenizer": _pre_tokenizer(pairs.pattern),
        "post_processor": None,
        "decoder": _byte_level(add_prefix_space=True, use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": _by_id(pairs),
            "merges": [(spell(left), spell(right)) for left, right in pairs.merges],
        },
    }
    return json.dumps(file, indent=2, ensure_ascii=False).encode()


def tokenizer_config(pairs: BytePairs, end_of_text: int | None = None) -> bytes:
    """Beginning, end and unknown are all the end-of-text token, as GPT-2 has it; without one, none is set."""
    if end_of_text is None:
        end_of_text = find_end_of_text(pairs.special_tokens)
    name = next((n for n, number in pairs.special_tokens.items() if number == end_of_text), None)
    roles = ("bos_token", "eos_token", "unk_token") if name is not None else ()
    config = {
        **dict.fromkeys(roles, name),
        "clean_up_tokenization_spaces": False,  # else decoding turns " ." into "."
        "model_max_length": 10**30,  # transformers' own number for "no limit"
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return json.dumps(config, indent=2, ensure_ascii=False).encode()


def merges_txt(pairs: BytePairs) -> bytes:
    """One merge a line, by rank; the first line is the version and, if it is not GPT-2's, the pattern."""
    pattern = "" if pairs.pattern == "gpt2" else PATTERN_IN_HEADER + pairs.pattern
    lines = [f"{spell(left)} {spell(right)}\n" for left, right in pairs.merges]
    return "".join([MERGES_HEADER, pattern, "\n", *lines]).encode()


def tiktoken_ranks(pairs: BytePairs) -> bytes:
    """`base64(token) SPACE id` for all tokens that are not special; the ids are the ranks."""
    ordinary = sorted(pairs.tokens.items(), key=lambda item: item[1])
    return b"".join(
        base64.b64encode(token) + b" " + str(number).encode() + b"\n" for token, number in ordinary
    )


def refuse_spelled_alike(pairs: BytePairs) -> None:
    """A UsageError where a special token's name is also how JSON spells another token."""
    for name in pairs.special_tokens:
        token = unspell(name)
        if token in pairs.tokens:
            raise UsageError(
                f"the special token {name!r} is spelled like the token {token!r}: "
                "vocab.json and tokenizer.json can hold only one of them",
                remedy="choose a name with ASCII brackets around it, such as <|endoftext|>",
            )


def may_be_spelled_alike(name: str) -> bool:
    """Whether training could learn a token that is spelled like this special one.

    A single letter always is the stand-in of a byte. `Ġthe` is how JSON spells ` the`. A longer ASCII name
    is spelled by itself, and training cuts the text there: it is never learnt.
    """
    return unspell(name) is not None and (len(name) == 1 or not name.isascii())


def first_disagreement(pairs: BytePairs) -> bytes | None:
    """The first token by rank that tiktoken does not build as tokenizers does; None if they always agree.

    tokenizers merges the *pair* with the lowest rank, tiktoken any two neighbours whose joined bytes have
    the lowest rank. Take the first text on which they part: two neighbours make a token, but are
    not the halves it was learnt from. No merge had reached across their borders, so the token's own bytes,
    merged alone, come to these two neighbours as well. So it is enough to look at every token by itself:
    it must be made once, later than all before it, and come to its own halves. What was learnt by merging
    always does. Costs a few look-ups a token, about 0.3 s for 50,000.
    """
    born: dict[bytes, int] = {}
    halves: dict[bytes, tuple[bytes, bytes]] = {}
    rank_of = {pair: rank for rank, pair in enumerate(pairs.merges)}
    latest_id = -1
    for rank, pair in enumerate(pairs.merges):
        token = pair[0] + pair[1]
        in_order = pairs.tokens[token] > latest_id  # and so it is new
        if not in_order or _is_crossed(pair, rank, rank_of, born, halves):
            return token
        born[token], halves[token], latest_id = rank, pair, pairs.tokens[token]
    return None


def _is_crossed(
    pair: tuple[bytes, bytes],
    rank: int,
    rank_of: Mapping[tuple[bytes, bytes], int],
    born: Mapping[bytes, int],
    halves: Mapping[bytes, tuple[bytes, bytes]],
) -> bool:
    """Whether an earlier merge reaches across the border of two halves before both are whole.

    Goes back in time: of the two neighbours at the border, the younger one is taken apart.
    """
    left, right = pair
    left_until = right_until = rank
    while True:
        crossing = rank_of.get((left, right), rank)
        # Equal ranks are taken from the left: "aa|a" keeps its border, "a|aa" does not.
        if crossing < left_until and crossing <= right_until:
            return True
        left_born, right_born = born.get(left, -1), born.get(right, -1)
        if left_born == right_born == -1:
            return False
        if left_born >= right_born:
            left, left_until = halves[left][1], left_born
        else:
            right, right_until = halves[right][0], right_born


def _by_id(pairs: BytePairs) -> dict[str, int]:
    spelled = {spell(token): number for token, number in pairs.tokens.items()}
    everything = {**pairs.special_tokens, **spelled}
    return dict(sorted(everything.items(), key=lambda item: item[1]))


def _pre_tokenizer(pattern: PatternName) -> dict[str, object]:
    if pattern == "gpt2":  # ByteLevel's own expression
        return _byte_level(add_prefix_space=False, use_regex=True)
    split = {
        "type": "Split",
        "pattern": {"Regex": PLAIN_PATTERNS[pattern]},
        "behavior": "Isolated",
        "invert": False,
    }
    byte_level = _byte_level(add_prefix_space=False, use_regex=False)
    return {"type": "Sequence", "pretokenizers": [split, byte_level]}


def _byte_level(*, add_prefix_space: bool, use_regex: bool) -> dict[str, object]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }
