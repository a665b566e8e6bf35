"""Write and read a byte-level BPE vocabulary in every form that other tools use.

tokenizer.json               tokenizers, transformers, gigatoken; byte for byte what tokenizers would save
tokenizer_config.json        what transformers.AutoTokenizer wants to find beside it
vocab.json + merges.txt      GPT-2's own form. Read: a token that is neither a byte nor merged is special; the
                             pattern is GPT-2's unless the first line of merges.txt names another
tokenizer.PATTERN.tiktoken   ranks for tiktoken; the pattern stands in the name. Read: merges are recovered from
                             the ranks, which takes seconds for 100,000 tokens
gpt2, cl100k_base, …         the published rank files, read only

A rank file cannot name special tokens. Pass them to tiktoken as `special_tokens`; lowtide reads them from the
tokenizer.json in the same folder.

Reading opens these files of one folder only, executes nothing in them, and follows nothing that they name.
Whatever is wrong with a file is a UsageError.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import get_args

import msgspec

from lowtide.errors import UsageError
from lowtide.settings import PatternName
from lowtide.storage.decode_json import decode_json
from lowtide.tokenizer.byte_pairs import BytePairs, spell, stand_ins, unspell
from lowtide.tokenizer.hugging_face import (
    JsonFile,
    check_ids,
    find_end_of_text,
    missing_bytes_error,
    plain_pattern,
    read_file,
)
from lowtide.tokenizer.patterns import PLAIN_PATTERNS
from lowtide.tokenizer.vocabulary import (
    Vocabulary,
    load_vocabulary,
    parse_ranks,
    read_tokenizer_file,
)

TRAINED_MANIFEST_NAME = "lowtide-tokenizer.json"
"""The manifest of a folder in which lowtide trained a tokenizer; it has the digests of these files."""
CONFIG_NAME = "tokenizer_config.json"
MERGES_HEADER = "#version: 0.2"
PATTERN_IN_HEADER = " - pattern: "
"""Follows the version where the pattern is not GPT-2's; every reader skips the whole first line."""

_VOCAB, _MERGES = "vocab.json", "merges.txt"
_LONGEST_TOKEN_BYTES = 4096
"""Finding the halves of a token from ranks can cost the square of its length."""
_USE_AS_IS = "encode and decode with it as it is"
_NOTHING_EATEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}

Merge = tuple[bytes, bytes]
SpelledMerge = tuple[str, str]


# Writing


def tokenizer_files(pairs: BytePairs, *, end_of_text: int | None = None) -> dict[str, bytes]:
    """Every file by its name, to be written in this order: a folder with a tokenizer.json has them all.

    An `end_of_text` of None means the special token with a usual name for it, if there is one.
    The rank file is left out where tiktoken would give other ids than tokenizers (`first_disagreement`).
    That never happens with a learnt vocabulary, only with some that were put together by hand.
    """
    refuse_spelled_alike(pairs)
    ranks_agree = first_disagreement(pairs) is None
    return {
        **({rank_file_name(pairs.pattern): tiktoken_ranks(pairs)} if ranks_agree else {}),
        _MERGES: merges_txt(pairs),
        _VOCAB: json.dumps(_ids_as_spelled(pairs)).encode(),
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
            for name, number in sorted(pairs.special_tokens.items(), key=itemgetter(1))
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
            "vocab": _ids_as_spelled(pairs),
            "merges": [(spell(left), spell(right)) for left, right in pairs.merges],
        },
    }
    return json.dumps(file, indent=2, ensure_ascii=False).encode()


def tokenizer_config(pairs: BytePairs, end_of_text: int | None = None) -> bytes:
    """A tokenizer_config.json. As with GPT-2, end-of-text is also the beginning and the unknown token."""
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
    """A merges.txt: first the version and any pattern that is not GPT-2's, then one merge a line, by rank."""
    pattern = "" if pairs.pattern == "gpt2" else PATTERN_IN_HEADER + pairs.pattern
    lines = [f"{spell(left)} {spell(right)}\n" for left, right in pairs.merges]
    return "".join([MERGES_HEADER, pattern, "\n", *lines]).encode()


def tiktoken_ranks(pairs: BytePairs) -> bytes:
    """`base64(token) SPACE id` for all tokens that are not special; the ids are the ranks."""
    ordinary = sorted(pairs.tokens.items(), key=itemgetter(1))
    return b"".join(
        base64.b64encode(token) + b" " + str(number).encode() + b"\n" for token, number in ordinary
    )


def refuse_spelled_alike(pairs: BytePairs) -> None:
    """Raise UsageError where a special token's name is also the spelling of another token in JSON."""
    for name in pairs.special_tokens:
        token = unspell(name)
        if token in pairs.tokens:
            raise UsageError(
                f"the special token {name!r} is spelled like the token {token!r}: "
                "vocab.json and tokenizer.json can hold only one of them",
                remedy="choose a name with ASCII brackets around it, such as <|endoftext|>",
            )


def may_be_spelled_alike(name: str) -> bool:
    """Whether training could learn a token that is spelled like this special token.

    A single letter is always the stand-in of a byte, and `Ġthe` is the spelling of ` the`. A longer ASCII name
    spells itself, and training cuts the text there: it is never learnt.
    """
    return unspell(name) is not None and (len(name) == 1 or not name.isascii())


def first_disagreement(pairs: BytePairs) -> bytes | None:
    """The first token by rank that tiktoken does not build as tokenizers does; None if they always agree.

    tokenizers merges the *pair* with the lowest rank, tiktoken any two neighbours whose joined bytes have
    the lowest rank. Take the first text on which they differ: two neighbours make a token, but are
    not the halves it was learnt from. No merge had reached across their borders, so the token's own bytes,
    merged alone, come to these two neighbours as well. So it is enough to look at every token by itself:
    it must be made once, later than all before it, and come to its own halves. A learnt token
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

    Goes back in time: of the two neighbours at the border, the one that was made later is taken apart.
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


def _ids_as_spelled(pairs: BytePairs) -> dict[str, int]:
    spelled = {spell(token): number for token, number in pairs.tokens.items()}
    everything = {**pairs.special_tokens, **spelled}
    return dict(sorted(everything.items(), key=itemgetter(1)))


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


# Reading


def read_byte_pairs(source: str | Path) -> BytePairs:
    """Read the tokens and merges of a tokenizer by its name, file or folder."""
    files = find_pair_files(source)
    return read_pair_files(*files) if files else byte_pairs_of(load_vocabulary(str(source)))


def byte_pairs_of(vocabulary: Vocabulary) -> BytePairs:
    """The tokens and merges of a loaded vocabulary; UsageError where `BytePairs` cannot hold it."""
    name = vocabulary.name
    if vocabulary.kind == "ranks":
        assert vocabulary.pattern is not None
        ranks = parse_ranks(vocabulary.content, name=name)
        return BytePairs(
            pattern=vocabulary.pattern,
            special_tokens=dict(vocabulary.special_tokens),
            tokens=dict(sorted(ranks.items(), key=itemgetter(1))),
            merges=recover_merges(ranks, name=name),
        )
    file = read_file(vocabulary.content, name=name)
    reason = _why_not(file, vocabulary)
    if reason is not None:
        raise UsageError(
            f"{name} is not a plain byte-level BPE tokenizer: {reason}",
            remedy=f"{_USE_AS_IS}; for its tokens, use `tokenizers.Tokenizer.from_file`",
        )
    pattern, ids = plain_pattern(file), file.model.vocab
    assert pattern is not None
    assert isinstance(ids, dict)
    merges = _split_merges(file, name)
    return _checked(pattern, vocabulary.special_tokens, ids, merges, name=name)


def why_not_byte_pairs(vocabulary: Vocabulary) -> str | None:
    """The feature of a tokenizer.json that `BytePairs` cannot hold, or None. Such a file is not damaged."""
    if vocabulary.kind == "ranks":
        return None
    return _why_not(read_file(vocabulary.content, name=vocabulary.name), vocabulary)


def _why_not(file: JsonFile, vocabulary: Vocabulary) -> str | None:
    ids = file.model.vocab
    if file.model.type != "BPE" or not isinstance(ids, dict):
        return f"its model is {file.model.type}"
    made = _made(_split_merges(file, vocabulary.name))
    special = {token.content for token in file.added_tokens}
    choosy = any(token.eats_neighbours for token in file.added_tokens)
    reasons = {
        "its model marks the ends or the beginnings of words": not file.model.is_plain,
        "words are looked up as a whole before they are merged": file.model.ignore_merges,
        "a normalizer changes the text": file.has_normalizer,
        "a post-processor adds tokens": _adds_tokens(file.post_processor),
        "it looks for added tokens that are not special": bool(vocabulary.added_tokens),
        "a special token depends on its neighbours": choosy,
        "no plain gpt2, cl100k or o200k pattern cuts its words": plain_pattern(file) is None,
        "a special token is an ordinary one as well": bool(special & made),
        "some of its tokens are made by no merge": bool(ids.keys() - made - special),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _made(merges: Iterable[SpelledMerge]) -> set[str]:
    """The spellings of all tokens that are a byte or the result of a merge."""
    return {*stand_ins(), *(left + right for left, right in merges)}


def _split_merges(file: JsonFile, name: str) -> list[SpelledMerge]:
    """The merges of a tokenizer.json as pairs. Older files spell a merge as one string, `"Ġ t"`."""
    return [
        _split_merge(merge, name) if isinstance(merge, str) else merge
        for merge in file.model.merges
    ]


def _adds_tokens(post_processor: msgspec.Raw) -> bool:
    """Whether tokens are put around a text: by anything but ByteLevel, which only moves offsets."""
    if bytes(post_processor) == b"null":
        return False
    try:
        return decode_json(post_processor, dict[str, object]).get("type") != "ByteLevel"
    except msgspec.DecodeError:
        return True


def find_pair_files(source: str | Path) -> tuple[Path, Path] | None:
    """The paths of vocab.json and merges.txt, if `source` is one of them or a folder without tokenizer.json."""
    path = Path(source)
    if path.is_dir():
        has_pair = (path / _VOCAB).is_file() and not (path / "tokenizer.json").is_file()
        return (path / _VOCAB, path / _MERGES) if has_pair else None
    for ending in (_VOCAB, _MERGES):  # tokenizers can put a prefix before both names
        if path.name.endswith(ending) and path.is_file():
            prefix = path.name.removesuffix(ending)
            return path.with_name(prefix + _VOCAB), path.with_name(prefix + _MERGES)
    return None


def read_pair_files(vocab_path: Path, merges_path: Path) -> BytePairs:
    """Read GPT-2's form: ids in one file, merges by rank in the other."""
    for path, other in ((vocab_path, merges_path), (merges_path, vocab_path)):
        if not path.is_file():
            raise UsageError(
                f"{other} has no {path.name} beside it",
                remedy=f"put {path.name} into {path.parent}: both files are needed",
            )
    ids = _parse_vocab(vocab_path)
    pattern, merges = _parse_merges(merges_path)
    made = _made(merges)
    special = {text: number for text, number in ids.items() if text not in made}
    return _checked(pattern, special, ids, merges, name=str(vocab_path))


def take_named_end(vocabulary: Vocabulary, path: Path) -> Vocabulary:
    """The vocabulary at `path`, with the `eos_token` of a tokenizer_config.json beside it as its end-of-text.

    A name that is not a special token's, or no name at all, changes nothing.
    """
    config = (path if path.is_dir() else path.parent) / CONFIG_NAME
    if vocabulary.kind != "json" or not config.is_file():
        return vocabulary
    try:
        named = decode_json(read_tokenizer_file(config), dict[str, object]).get("eos_token")
    except msgspec.DecodeError as cause:
        raise UsageError(
            f"{config} does not hold a tokenizer's settings: {cause}",
            remedy="put back the file that came with the tokenizer, or remove it",
        ) from cause
    name = named.get("content") if isinstance(named, dict) else named
    number = vocabulary.special_tokens.get(name) if isinstance(name, str) else None
    return vocabulary if number is None else replace(vocabulary, end_of_text=number)


def _parse_vocab(path: Path) -> dict[str, int]:
    try:
        return decode_json(read_tokenizer_file(path), dict[str, int])
    except msgspec.DecodeError as cause:
        raise UsageError(
            f"{path} is not a vocab.json: {cause}",
            remedy='it must be one JSON object of tokens and their ids, as {"!": 0, "Ġthe": 262}',
        ) from cause


def _parse_merges(path: Path) -> tuple[PatternName, list[SpelledMerge]]:
    try:
        lines = read_tokenizer_file(path).decode().split("\n")
    except UnicodeDecodeError as cause:
        raise UsageError(
            f"{path} is not a merges.txt: {cause}", remedy="it must be UTF-8 text, one merge a line"
        ) from cause
    pattern: PatternName = "gpt2"
    if lines[0].startswith("#version"):  # only here: `#version` may also be learnt, from shaders
        pattern = _parse_header(lines.pop(0).removesuffix("\r"), path)
    stripped = (line.removesuffix("\r") for line in lines)
    return pattern, [_split_merge(line, str(path)) for line in stripped if line]


def _parse_header(header: str, path: Path) -> PatternName:
    version, _, named = header.partition(PATTERN_IN_HEADER)
    patterns: tuple[PatternName, ...] = get_args(PatternName)
    for pattern in patterns:
        if version.startswith(MERGES_HEADER) and pattern == (named or "gpt2"):
            return pattern
    raise UsageError(
        f"{path} begins with {header[:60]!r}",
        remedy=f"its first line must read `{MERGES_HEADER}`, or `{MERGES_HEADER}{PATTERN_IN_HEADER}cl100k` "
        "for another pattern than GPT-2's",
    )


def _split_merge(line: str, name: str) -> SpelledMerge:
    left, space, right = line.partition(" ")
    if not (left and space and right) or " " in right:
        raise UsageError(
            f"{name} has a merge that reads {line[:60]!r}",
            remedy="a merge must be two tokens with one space between them, such as `Ġ t`",
        )
    return left, right


def recover_merges(ranks: Mapping[bytes, int], *, name: str) -> tuple[Merge, ...]:
    """The two halves of every token: what its bytes become when only lower ranks are merged.

    >>> ranks = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"abc": 4}
    >>> recover_merges(ranks, name="an example")
    ((b'b', b'c'), (b'a', b'bc'))
    """
    merges: list[Merge] = []
    for token, rank in sorted(ranks.items(), key=itemgetter(1)):
        if len(token) == 1:
            continue
        halves = _merge_below(token, rank, ranks) if len(token) <= _LONGEST_TOKEN_BYTES else []
        if len(halves) != 2:
            raise UsageError(
                f"{name} does not tell which two tokens make {token[:40]!r} ({len(token)} bytes)",
                remedy=f"pass the tokenizer.json that was written with it; or {_USE_AS_IS}",
            )
        merges.append((halves[0], halves[1]))
    return tuple(merges)


def _merge_below(token: bytes, limit: int, ranks: Mapping[bytes, int]) -> list[bytes]:
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(left + right, limit) for left, right in pairwise(parts)]
        best = min(range(len(joined)), key=joined.__getitem__)
        if joined[best] >= limit:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def _checked(
    pattern: PatternName,
    special: Mapping[str, int],
    ids: Mapping[str, int],
    merges: Iterable[SpelledMerge],
    *,
    name: str,
) -> BytePairs:
    """The vocabulary, once nothing in it contradicts anything else. `ids` may also hold special tokens."""
    spelled = ((text, unspell(text)) for text in ids if text not in special)
    bytes_of = {text: token for text, token in spelled if token is not None}
    ranked = list(dict.fromkeys(reversed(list(merges))))  # tokenizers takes a pair's last rank
    ranked.reverse()
    _refuse_unknown(ranked, bytes_of, name)
    missing = [byte for byte, letter in enumerate(stand_ins()) if letter not in bytes_of]
    if missing:
        raise missing_bytes_error(missing, name=name)
    _refuse_shared_ids([*ids.items(), *special.items()], name)
    return BytePairs(
        pattern=pattern,
        special_tokens=dict(sorted(special.items(), key=itemgetter(1))),
        tokens={
            token: ids[text]
            for text, token in sorted(bytes_of.items(), key=lambda item: ids[item[0]])
        },
        merges=tuple((bytes_of[left], bytes_of[right]) for left, right in ranked),
    )


def _refuse_unknown(merges: list[SpelledMerge], known: Mapping[str, bytes], name: str) -> None:
    for left, right in merges:
        for text in (left, right, left + right):
            if text not in known:
                raise UsageError(
                    f"{name} merges {left[:40]!r} and {right[:40]!r}, but {text[:80]!r} is not a token",
                    remedy="take vocabulary and merges from the same tokenizer",
                )


def _refuse_shared_ids(numbered: Sequence[tuple[str, int]], name: str) -> None:
    """Raise UsageError unless every token has one id, and every id one token."""
    check_ids([number for _text, number in numbered], name=name)
    owners: dict[int, str] = {}
    ids: dict[str, int] = {}
    for text, number in numbered:
        if owners.setdefault(number, text) != text or ids.setdefault(text, number) != number:
            raise UsageError(
                f"{name} gives the id {number} to {text[:40]!r}, but {owners[number][:40]!r} has the id "
                f"{ids.get(owners[number], number)}",
                remedy="give every token one id, and no two the same",
            )
