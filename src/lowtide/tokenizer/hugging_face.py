"""What a tokenizer.json says of itself: pattern, special tokens, and whether text may be cut at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from lowtide.errors import UsageError
from lowtide.tokenizer.patterns import PatternName, recognise

_KNOWN_CLASSES = frozenset({"L", "Lu", "Ll", "Lt", "Lm", "Lo", "N", "Nd", "M"})
_CUTTING = frozenset({"Split", "ByteLevel", "Digits", "Punctuation"})
"""Pre-tokenizers that part a text and change none of it."""
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
    ignore_merges: bool = False
    byte_fallback: bool | None = None
    dropout: float | None = None
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None

    @property
    def is_plain(self) -> bool:
        """Merges by rank and nothing else: what gigatoken does."""
        unusual = (self.dropout, self.continuing_subword_prefix, self.end_of_word_suffix)
        return self.type == "BPE" and not self.byte_fallback and not any(unusual)

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
    plain: bool


def read_facts(content: bytes, *, name: str) -> JsonFacts:
    """Read a tokenizer.json. Anything that is not one is a UsageError."""
    file = read_file(content, name=name)
    if file.model.dropout:
        raise UsageError(
            f"{name} drops merges at random (dropout {file.model.dropout}): no two runs would agree",
            remedy='set "dropout" to null in the file',
        )
    vocabulary_ids = file.model.vocab.values() if isinstance(file.model.vocab, dict) else ()
    largest = max([*vocabulary_ids, *(token.id for token in file.added_tokens), -1])
    special = {token.content: token.id for token in file.added_tokens if token.special}
    ordinary = tuple(token.content for token in file.added_tokens if not token.special)
    plain = (
        _is_byte_level_bpe(file)
        and not file.model.repeats_a_merge
        and _asks_for_known_classes(file.pre_tokenizer)
        and not any(_eats_neighbours(token) for token in file.added_tokens)
        and not _may_meet(file.added_tokens)
    )
    return JsonFacts(
        pattern=_pattern_of(file.pre_tokenizer) if plain else None,
        size=max(largest + 1, len(file.model.vocab)),
        special_tokens=special,
        added_tokens=ordinary,
        end_of_text=find_end_of_text(special),
        plain=plain,
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
    """The parsed file, or a UsageError for anything that is no tokenizer.json."""
    try:
        return msgspec.json.decode(content, type=JsonFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise UsageError(
            f"{name} is not a tokenizer.json: {cause}",
            remedy="pass a file that `tokenizers.Tokenizer.from_file` opens",
        ) from cause


def _is_byte_level_bpe(file: JsonFile) -> bool:
    has_pattern = file.pre_tokenizer is not None
    return has_pattern and file.model.is_plain and bytes(file.normalizer) == b"null"


def _asks_for_known_classes(pre: _PreTokenizer | None) -> bool:
    """Whether words are cut by letters, numbers, marks and blanks alone.

    On other classes (punctuation, symbols) the fast encoder's Unicode version differs in ways we do not know.
    """
    if pre is None:
        return True
    if pre.type not in ("Sequence", "Split", "ByteLevel"):
        return False
    expression = (pre.pattern.regex or "") if pre.pattern else ""
    classes = re.findall(r"\\[pP]\{\^?(\w+)\}|\[:(\w+):\]", expression)
    known = all(name in _KNOWN_CLASSES and not posix for name, posix in classes)
    return known and all(_asks_for_known_classes(step) for step in pre.pretokenizers or [])


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
    return mixed or any(
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
