"""From a tokenizer's files back to `BytePairs`, or a UsageError that says what is wrong with them.

tokenizer.json            all is in it, but for the end-of-text token that tokenizer_config.json may name
vocab.json + merges.txt   what is neither a byte nor merged is a special token; the pattern is GPT-2's
                          unless the first line of merges.txt names another
NAME.tiktoken             merges are found again from the ranks: seconds for 100,000 tokens
gpt2, cl100k_base, …      the published rank files

Only these files of one folder are opened, nothing in them is executed, and nothing they name is followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import get_args

import msgspec

from lowtide.errors import UsageError
from lowtide.storage.decode_json import decode_json
from lowtide.tokenizer.byte_pairs import BytePairs, stand_ins, unspell
from lowtide.tokenizer.hugging_face import JsonFile, check_ids, plain_pattern, read_file
from lowtide.tokenizer.patterns import PatternName
from lowtide.tokenizer.vocabulary import (
    Vocabulary,
    load_vocabulary,
    parse_ranks,
    read_tokenizer_file,
)
from lowtide.tokenizer.write_files import CONFIG_NAME, MERGES_HEADER, PATTERN_IN_HEADER

_VOCAB, _MERGES = "vocab.json", "merges.txt"
_LONGEST_TOKEN_BYTES = 4096
"""Finding the halves of a token from ranks can cost the square of its length."""

Merge = tuple[bytes, bytes]
SpelledMerge = tuple[str, str]
_AS_IT_IS = "encode and decode with it as it is"


def read_byte_pairs(source: str | Path) -> BytePairs:
    """The tokens and merges of a tokenizer, by name, file or folder."""
    files = find_pair_files(source)
    return read_pair_files(*files) if files else byte_pairs_of(load_vocabulary(str(source)))


def byte_pairs_of(vocabulary: Vocabulary) -> BytePairs:
    """The same for a vocabulary that was loaded before."""
    if vocabulary.kind == "ranks":
        return _from_ranks(vocabulary)
    file = read_file(vocabulary.content, name=vocabulary.name)
    reason = _why_not(file, vocabulary)
    if reason is not None:
        raise UsageError(
            f"{vocabulary.name} is not a plain byte-level BPE tokenizer: {reason}",
            remedy=f"{_AS_IT_IS}; for its tokens, use `tokenizers.Tokenizer.from_file`",
        )
    return _from_json(file, vocabulary)


def why_not_byte_pairs(vocabulary: Vocabulary) -> str | None:
    """What a tokenizer.json asks for that `BytePairs` cannot hold, or None. Such a file is not damaged."""
    if vocabulary.kind == "ranks":
        return None
    return _why_not(read_file(vocabulary.content, name=vocabulary.name), vocabulary)


def _why_not(file: JsonFile, vocabulary: Vocabulary) -> str | None:
    ids = file.model.vocab
    if file.model.type != "BPE" or not isinstance(ids, dict):
        return f"its model is {file.model.type}"
    made = _made(_split_merges(file, vocabulary.name))
    special = {token.content for token in file.added_tokens}
    choosy = any(token.lstrip or token.rstrip or token.single_word for token in file.added_tokens)
    reasons = {
        "its model marks the ends or the beginnings of words": not file.model.is_plain,
        "words are looked up as a whole before they are merged": file.model.ignore_merges,
        "a normalizer changes the text": bytes(file.normalizer) != b"null",
        "a post-processor adds tokens": _adds_tokens(file.post_processor),
        "it looks for added tokens that are not special": bool(vocabulary.added_tokens),
        "a special token depends on its neighbours": choosy,
        "no plain gpt2, cl100k or o200k pattern cuts its words": plain_pattern(file) is None,
        "a special token is an ordinary one as well": bool(special & made),
        "some of its tokens are made by no merge": bool(ids.keys() - made - special),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _from_json(file: JsonFile, vocabulary: Vocabulary) -> BytePairs:
    pattern, ids = plain_pattern(file), file.model.vocab
    assert pattern is not None
    assert isinstance(ids, dict)
    merges = _split_merges(file, vocabulary.name)
    return _checked(pattern, vocabulary.special_tokens, ids, merges, name=vocabulary.name)


def _made(merges: Iterable[SpelledMerge]) -> set[str]:
    """The spelling of every token that is a byte or the result of a merge."""
    return {*stand_ins(), *(left + right for left, right in merges)}


def _split_merges(file: JsonFile, name: str) -> list[SpelledMerge]:
    """Older files spell a merge as one string, `"Ġ t"`."""
    return [
        _split_merge(merge, name) if isinstance(merge, str) else merge
        for merge in file.model.merges
    ]


def _adds_tokens(post_processor: msgspec.Raw) -> bool:
    """ByteLevel only moves offsets; anything else puts tokens around a text."""
    if bytes(post_processor) == b"null":
        return False
    try:
        return decode_json(post_processor, dict[str, object]).get("type") != "ByteLevel"
    except msgspec.DecodeError:
        return True


def find_pair_files(source: str | Path) -> tuple[Path, Path] | None:
    """vocab.json and merges.txt where one of them is named, or a folder without a tokenizer.json."""
    path = Path(source)
    if path.is_dir():
        is_theirs = (path / _VOCAB).is_file() and not (path / "tokenizer.json").is_file()
        return (path / _VOCAB, path / _MERGES) if is_theirs else None
    for ending in (_VOCAB, _MERGES):  # tokenizers puts a prefix before both names, if told to
        if path.name.endswith(ending) and path.is_file():
            prefix = path.name.removesuffix(ending)
            return path.with_name(prefix + _VOCAB), path.with_name(prefix + _MERGES)
    return None


def read_pair_files(vocab_path: Path, merges_path: Path) -> BytePairs:
    """GPT-2's form: ids in one file, merges by rank in the other."""
    for path, other in ((vocab_path, merges_path), (merges_path, vocab_path)):
        if not path.is_file():
            raise UsageError(
                f"{other} is there, but {path.name} beside it is not",
                remedy=f"put {path.name} into {path.parent}: neither file is of use alone",
            )
    ids = _parse_vocab(vocab_path)
    pattern, merges = _parse_merges(merges_path)
    made = _made(merges)
    special = {text: number for text, number in ids.items() if text not in made}
    return _checked(pattern, special, ids, merges, name=str(vocab_path))


def take_named_end(vocabulary: Vocabulary, path: Path) -> Vocabulary:
    """The vocabulary of the tokenizer.json at `path`, ended by the `eos_token` that is named beside it.

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
    left, blank, right = line.partition(" ")
    if not (left and blank and right) or " " in right:
        raise UsageError(
            f"{name} has a merge that reads {line[:60]!r}",
            remedy="a merge must be two tokens with one space between them, such as `Ġ t`",
        )
    return left, right


def recover_merges(ranks: Mapping[bytes, int], *, name: str) -> tuple[Merge, ...]:
    """The two halves of every token: what is left of its bytes when only lower ranks are merged.

    >>> ranks = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"abc": 4}
    >>> recover_merges(ranks, name="an example")
    ((b'b', b'c'), (b'a', b'bc'))
    """
    merges: list[Merge] = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        halves = _merge_below(token, rank, ranks) if len(token) <= _LONGEST_TOKEN_BYTES else []
        if len(halves) != 2:
            raise UsageError(
                f"{name} does not tell which two tokens make {token[:40]!r} ({len(token)} bytes)",
                remedy=f"pass the tokenizer.json that was written with it; or {_AS_IT_IS}",
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


def _from_ranks(vocabulary: Vocabulary) -> BytePairs:
    assert vocabulary.pattern is not None
    ranks = parse_ranks(vocabulary.content, name=vocabulary.name)
    return BytePairs(
        pattern=vocabulary.pattern,
        special_tokens=dict(vocabulary.special_tokens),
        tokens=dict(sorted(ranks.items(), key=lambda item: item[1])),
        merges=recover_merges(ranks, name=vocabulary.name),
    )


def _checked(
    pattern: PatternName,
    special: Mapping[str, int],
    ids: Mapping[str, int],
    merges: Iterable[SpelledMerge],
    *,
    name: str,
) -> BytePairs:
    """The values, once nothing in them contradicts anything else. `ids` may hold special tokens, too."""
    spelled = ((text, unspell(text)) for text in ids if text not in special)
    bytes_of = {text: token for text, token in spelled if token is not None}
    ranked = list(dict.fromkeys(reversed(list(merges))))  # tokenizers takes a pair's last rank
    ranked.reverse()
    _refuse_unknown(ranked, bytes_of, name)
    _refuse_missing_bytes(bytes_of, name)
    _refuse_shared_ids([*ids.items(), *special.items()], name)
    return BytePairs(
        pattern=pattern,
        special_tokens=dict(sorted(special.items(), key=lambda item: item[1])),
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


def _refuse_missing_bytes(known: Mapping[str, bytes], name: str) -> None:
    missing = [byte for byte, letter in enumerate(stand_ins()) if letter not in known]
    if missing:
        raise UsageError(
            f"{name} has no token for {len(missing)} of the 256 bytes (0x{missing[0]:02x} is the first): "
            "text that holds them would be lost",
            remedy="train it with all bytes, as `lowtide train-tokenizer` does; in tokenizers by "
            "`initial_alphabet=pre_tokenizers.ByteLevel.alphabet()`",
        )


def _refuse_shared_ids(numbered: Sequence[tuple[str, int]], name: str) -> None:
    """Every token has one id, and every id one token."""
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
