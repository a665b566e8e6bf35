"""What a tokenizer.json says of itself: pattern, special tokens, and whether text may be cut at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from lowtide.errors import UsageError
from lowtide.storage.decode_json import decode_json
from lowtide.tokenizer.byte_pairs import stand_ins
from lowtide.tokenizer.patterns import PatternName, recognise
from lowtide.tokenizer.understood import is_understood

_LARGEST_ID = (1 << 31) - 2
"""The encoders keep tables by id; and one more than the largest is the id that ends documents."""
_SPARSE_SIZE = 1 << 20
"""The fast encoder's tables have a place for every id: from here on most of them must be taken."""
_CUTTING = frozenset({"Split", "ByteLevel", "Digits", "Punctuation"})
"""Pre-tokenizers that part a text and change none of it."""
_ADD_NOTHING = _CUTTING | {
    *("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts")
}
"""Pre-tokenizers that part a text, or leave some of it out, and bring in no other character."""
_END_OF_TEXT_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class _Expression(msgspec.Struct, rename={"regex": "Regex", "text": "String"}):
    regex: str | None = None
    text: str | None = None


class _PreTokenizer(msgspec.Struct):
    type: str
    add_prefix_space: bool = False
    use_regex: bool = True
    behavior: str = ""
    invert: bool = False
    pattern: _Expression | None = None
    pretokenizers: list[_PreTokenizer] | None = None


class _Model(msgspec.Struct):
    type: str = "BPE"
    vocab: dict[str, int] | list[tuple[str, float]] = {}
    merges: list[str | tuple[str, str]] = []
    ignore_merges: bool | None = False
    byte_fallback: bool | None = None
    dropout: float | None = None
    unk_token: str | None = None
    unk_id: int | None = None
    """Of Unigram, which names it by its place."""
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None

    @property
    def is_plain(self) -> bool:
        """Merges by rank and nothing else: what gigatoken does."""
        unusual = (self.dropout, self.continuing_subword_prefix, self.end_of_word_suffix)
        return self.type == "BPE" and not self.byte_fallback and not any(unusual)

    @property
    def ids(self) -> dict[str, int]:
        """The id of every token; Unigram's are their places."""
        if isinstance(self.vocab, dict):
            return self.vocab
        return {text: number for number, (text, _score) in enumerate(self.vocab)}

    @property
    def unknown(self) -> int | None:
        """The id that stands for text without a token, if there is one."""
        named = self.ids.get(self.unk_token) if self.unk_token is not None else None
        return self.unk_id if self.type == "Unigram" else named

    @property
    def repeats_a_merge(self) -> bool:
        """Then tokenizers takes the last rank of the pair and gigatoken the first."""
        return len(set(self.merges)) < len(self.merges)


class JsonFile(msgspec.Struct):
    """The parts of a tokenizer.json that decide about ids."""

    model: _Model
    added_tokens: list[_AddedToken] = []
    pre_tokenizer: _PreTokenizer | None = None
    normalizer: msgspec.Raw = msgspec.Raw(b"null")
    post_processor: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFacts:
    """The part of a tokenizer.json that lowtide itself must know."""

    pattern: PatternName | None
    size: int
    special_tokens: dict[str, int]
    added_tokens: tuple[str, ...]
    end_of_text: int | None
    unknown: int | None
    """The id that stands for text without a token; None where every text has tokens."""
    why_reference: str | None
    """Why only tokenizers gives its ids; None where gigatoken does."""


def read_facts(content: bytes, *, name: str) -> JsonFacts:
    """Read a tokenizer.json. Anything that is not one is a UsageError."""
    file = read_file(content, name=name)
    if file.model.dropout:
        raise UsageError(
            f"{name} drops merges at random (dropout {file.model.dropout}): no two runs would agree",
            remedy='set "dropout" to null in the file',
        )
    ids = file.model.ids
    check_ids([*ids.values(), *(token.id for token in file.added_tokens)], name=name)
    _refuse_other_ids(file, name=name)
    loses_text = file.model.type == "BPE" and not _spells_every_text(file)
    if loses_text and file.model.unknown is None:
        _refuse_lost_text(file, name=name)
    largest = max([*ids.values(), *(token.id for token in file.added_tokens), -1])
    special = {token.content: token.id for token in file.added_tokens if token.special}
    ordinary = tuple(token.content for token in file.added_tokens if not token.special)
    size = max(largest + 1, len(ids))
    why_reference = _why_reference(file, content, loses_text=loses_text, size=size)
    return JsonFacts(
        pattern=_pattern_of(file.pre_tokenizer) if why_reference is None else None,
        size=size,
        special_tokens=special,
        added_tokens=ordinary,
        end_of_text=find_end_of_text(special),
        unknown=file.model.unknown if loses_text or file.model.type != "BPE" else None,
        why_reference=why_reference,
    )


def _why_reference(file: JsonFile, content: bytes, *, loses_text: bool, size: int) -> str | None:
    """Why gigatoken would not give the ids of tokenizers; None where it does."""
    if file.model.type != "BPE":
        return f"its model is {file.model.type}, and gigatoken knows BPE alone"
    if not file.model.is_plain:
        return "its model marks the ends or beginnings of words, or falls back on bytes"
    if loses_text:
        return "some bytes have no token of their own"
    if bytes(file.normalizer) != b"null":
        return "a normalizer changes the text"
    if not is_understood(content):
        return "its pre-tokenizer, or another key of the file, is one that gigatoken may read otherwise"
    if file.model.repeats_a_merge:
        return "a merge stands in it twice"
    if not _spells_bytes_once(file):
        return "tokens share an id, or are not spelled in bytes"
    if size > max(_SPARSE_SIZE, 2 * len(file.model.ids)):
        return "most of its ids stand for no token"
    if any(_eats_neighbours(token) for token in file.added_tokens):
        return "an added token takes in its neighbours"
    if _may_meet(file.added_tokens):
        return "added tokens may claim the same text"
    return None


def check_ids(ids: Collection[int], *, name: str) -> None:
    """Refuse ids that are too large for the tables of an encoder."""
    if ids and (min(ids) < 0 or max(ids) > _LARGEST_ID):
        raise UsageError(
            f"{name} has ids from {min(ids)} to {max(ids)}",
            remedy=f"give every token an id from 0 to {_LARGEST_ID}",
        )


def _refuse_other_ids(file: JsonFile, *, name: str) -> None:
    """tokenizers gives added tokens the ids it sees fit; a file that says otherwise means two things at once.

    A token of the vocabulary keeps its id there. The others are numbered from the size of the vocabulary on,
    even if ids of the vocabulary have gaps and reach further.
    """
    ids = file.model.ids
    given: dict[str, int] = {}
    largest = -1
    for token in file.added_tokens:
        number = given.get(token.content, ids.get(token.content))
        if number is None:
            number = largest = max(len(ids), largest + 1)
        if token.content and number != token.id:
            raise UsageError(
                f"{name} gives the added token {token.content[:60]!r} the id {token.id}, and tokenizers "
                f"gives it {number}",
                remedy="write the file anew: `tokenizers.Tokenizer.from_file(...).save(...)`",
            )
        given[token.content] = number


def _spells_every_text(file: JsonFile) -> bool:
    """Whether a BPE model has tokens for whatever text comes: for every byte, or for every letter's bytes."""
    model, ids = file.model, file.model.ids
    if model.byte_fallback and all(f"<0x{byte:02X}>" in ids for byte in range(256)):
        return True
    fronts = {"", model.continuing_subword_prefix or ""}
    backs = {"", model.end_of_word_suffix or ""}
    return _spells_bytes(file) and all(
        front + letter + back in ids for letter in stand_ins() for front in fronts for back in backs
    )


def _spells_bytes(file: JsonFile) -> bool:
    """Whether what reaches the model are ByteLevel's letters and no other."""
    normalizers = _normalizers_of(msgspec.json.decode(file.normalizer))
    steps = [step.type for step in _steps_of(file.pre_tokenizer)]
    after = list(reversed([*normalizers, *steps]))
    if "ByteLevel" not in after:
        return False
    after = after[: after.index("ByteLevel")]
    return _ADD_NOTHING.issuperset(after)


def _normalizers_of(normalizer: object) -> list[str]:
    """The types of the steps, in their order."""
    match normalizer:
        case {"type": "Sequence", "normalizers": list(parts)}:
            return [name for part in parts for name in _normalizers_of(part)]
        case {"type": str(name)}:
            return [name]
    return [] if normalizer is None else ["unknown"]


def _steps_of(pre: _PreTokenizer | None) -> list[_PreTokenizer]:
    if pre is None:
        return []
    if pre.type != "Sequence":
        return [pre]
    return [step for part in pre.pretokenizers or [] for step in _steps_of(part)]


def _refuse_lost_text(file: JsonFile, *, name: str) -> NoReturn:
    ids = file.model.ids
    missing = [byte for byte, letter in enumerate(stand_ins()) if letter not in ids]
    if not _spells_bytes(file) or not missing:
        raise UsageError(
            f"{name} has neither a token for every byte nor one for unknown text: text would be lost",
            remedy='name a token of the vocabulary as "unk_token" in its model, or use a byte-level tokenizer',
        )
    raise UsageError(
        f"{name} has no token for {len(missing)} of the 256 bytes (0x{missing[0]:02x} is the first): "
        "text that holds them would be lost",
        remedy="train it with all bytes, as `lowtide train-tokenizer` does; in tokenizers by "
        "`initial_alphabet=pre_tokenizers.ByteLevel.alphabet()`",
    )


def _spells_bytes_once(file: JsonFile) -> bool:
    """Whether every token is spelled in bytes, and no two share an id."""
    ids = file.model.ids
    added = {token.content for token in file.added_tokens}
    letters = frozenset(stand_ins())
    return len(set(ids.values())) == len(ids) and all(
        letters.issuperset(text) or text in added for text in ids
    )


def find_end_of_text(special_tokens: Mapping[str, int]) -> int | None:
    """The id of the special token that ends a document, by the names that are usual for it."""
    return next((special_tokens[n] for n in _END_OF_TEXT_NAMES if n in special_tokens), None)


def plain_pattern(file: JsonFile) -> PatternName | None:
    """The pattern that cuts words, if it is a known one without possessive quantifiers.

    tiktoken's spelling has them; the engine inside tokenizers reads `{1,3}+` and `$` as something else.
    """
    steps = (file.pre_tokenizer.pretokenizers or []) if file.pre_tokenizer else []
    spelled = [step.pattern.regex or "" for step in steps if step.pattern]
    return None if any("++" in text for text in spelled) else _pattern_of(file.pre_tokenizer)


def with_added(content: bytes, added: Mapping[str, int], *, keep_special: bool) -> bytes:
    """The same tokenizer with more special tokens: what ends a document, and private marks.

    Without `keep_special` its own are left out, so that their names inside a text stay text.
    """
    raw: dict[str, msgspec.Raw] = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    tokens = msgspec.json.decode(raw.get("added_tokens", b"[]"), type=list[_AddedToken])
    kept = [
        token
        for token in tokens
        if (keep_special or not token.special) and token.content not in added
    ]
    kept += [_AddedToken(id=number, content=name, special=True) for name, number in added.items()]
    raw["added_tokens"] = msgspec.Raw(msgspec.json.encode(kept))
    return msgspec.json.encode(raw)


def keeps_bytes(file: JsonFile) -> bool:
    """Whether the bytes of a text's tokens, laid end to end, are the text's own.

    Not so where a normalizer, a blank put in front or a token that eats its neighbours changes them.
    """
    as_written = _is_byte_level_bpe(file) and _keeps_every_character(file.pre_tokenizer)
    return as_written and not any(_eats_neighbours(token) for token in file.added_tokens)


def read_file(content: bytes, *, name: str) -> JsonFile:
    """The parsed file, or a UsageError for anything that is not a tokenizer.json."""
    try:
        return decode_json(content, JsonFile)
    except msgspec.DecodeError as cause:
        raise UsageError(
            f"{name} is not a tokenizer.json: {cause}",
            remedy="pass a file that `tokenizers.Tokenizer.from_file` opens",
        ) from cause


def _is_byte_level_bpe(file: JsonFile) -> bool:
    has_pattern = file.pre_tokenizer is not None
    return has_pattern and file.model.is_plain and bytes(file.normalizer) == b"null"


def _keeps_every_character(pre: _PreTokenizer | None) -> bool:
    """Whether words are cut, spelled as bytes at last, and nothing is put in or left out on the way."""
    steps = [] if pre is None else pre.pretokenizers or [pre]
    cuts = all(
        step.type in _CUTTING and step.behavior.lower() != "removed" and not step.add_prefix_space
        for step in steps
    )
    return cuts and any(step.type == "ByteLevel" for step in steps)


def _may_meet(tokens: list[_AddedToken]) -> bool:
    """Whether two added tokens could claim the same bytes: then it matters in which order they are found."""
    mixed = len({token.normalized for token in tokens if not token.special}) > 1
    names = [token.content for token in tokens]
    repeated = len(set(names)) < len(names) or "" in names
    return (mixed or repeated) or any(
        first is not second and overlap(first, second) for first in names for second in names
    )


def overlap(first: str, second: str) -> bool:
    """Whether `second` can begin inside an occurrence of `first`, or lies in it."""
    inside = any(second.startswith(first[start:]) for start in range(1, len(first)))
    return inside or second in first


def _eats_neighbours(token: _AddedToken) -> bool:
    """Tokens that swallow white space or look at word borders: no cut beside them is safe."""
    return token.lstrip or token.rstrip or token.single_word


def _pattern_of(pre: _PreTokenizer | None) -> PatternName | None:
    """`ByteLevel` alone is GPT-2's pattern; `[Split(Regex), ByteLevel]` carries its own."""
    if pre is None:
        return None
    if pre.type == "ByteLevel":
        return "gpt2" if pre.use_regex and not pre.add_prefix_space else None
    steps = pre.pretokenizers or []
    if pre.type != "Sequence" or [step.type for step in steps] != ["Split", "ByteLevel"]:
        return None
    split, byte_level = steps
    if byte_level.use_regex or byte_level.add_prefix_space or split.pattern is None:
        return None
    isolated = split.behavior == "Isolated" or (split.behavior == "Removed" and split.invert)
    return recognise(split.pattern.regex or "") if isolated else None
