"""Read a tokenizer.json: its pattern and special tokens, and whether gigatoken gives its ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from lowtide.errors import UsageError
from lowtide.settings import PatternName
from lowtide.storage.decode_json import decode_json
from lowtide.tokenizer.byte_pairs import stand_ins
from lowtide.tokenizer.patterns import recognise

_LARGEST_ID = (1 << 31) - 2
"""The encoders keep tables by id, and one more than the largest is the id that ends documents."""
_SPARSE_SIZE = 1 << 20
"""The fast encoder's tables have a place for every id. Beyond this size most ids must be in use."""
_CUTTING = frozenset({"Split", "ByteLevel", "Digits", "Punctuation"})
"""Pre-tokenizers that cut a text and change none of it."""
_ADD_NOTHING = _CUTTING | {
    *("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts")
}
"""Pre-tokenizers that cut a text, or leave some of it out, and add no other character."""
_END_OF_TEXT_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
_KNOWN_KEYS = {
    "file": {
        *("version", "truncation", "padding", "added_tokens", "normalizer"),
        *("pre_tokenizer", "post_processor", "decoder", "model"),
    },
    "model": {
        *("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"),
        *("fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"),
    },
    "added token": {
        *("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"),
    },
}
"""The keys whose meaning is known. Any other may change ids in a way that the fast encoder ignores."""
_ONE_DIGIT = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
"""Qwen's expression: cl100k's with every digit a word."""


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False

    @property
    def eats_neighbours(self) -> bool:
        """Whether it takes in white space or looks at word borders: no cut beside it is safe."""
        return self.lstrip or self.rstrip or self.single_word


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
    """Where Unigram, which has no `unk_token`, lists the token for unknown text."""
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether words are merged by rank and nothing else, as gigatoken does it."""
        unusual = (self.dropout, self.continuing_subword_prefix, self.end_of_word_suffix)
        return self.type == "BPE" and not self.byte_fallback and not any(unusual)

    @property
    def ids(self) -> dict[str, int]:
        """The id of every token; Unigram's are their places in the list."""
        if isinstance(self.vocab, dict):
            return self.vocab
        return {text: number for number, (text, _score) in enumerate(self.vocab)}

    @property
    def unknown(self) -> int | None:
        """The id that stands for text without a token, if there is one."""
        named = self.ids.get(self.unk_token) if self.unk_token is not None else None
        return self.unk_id if self.type == "Unigram" else named


class JsonFile(msgspec.Struct):
    """The parts of a tokenizer.json that decide about ids."""

    model: _Model
    added_tokens: list[_AddedToken] = []
    pre_tokenizer: _PreTokenizer | None = None
    normalizer: msgspec.Raw = msgspec.Raw(b"null")
    post_processor: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def size(self) -> int:
        """One more than the largest id."""
        ids = self.model.ids
        largest = max([*ids.values(), *(token.id for token in self.added_tokens), -1])
        return max(largest + 1, len(ids))

    @property
    def special_tokens(self) -> dict[str, int]:
        """Names and ids of the special tokens."""
        return {token.content: token.id for token in self.added_tokens if token.special}

    @property
    def has_normalizer(self) -> bool:
        """Whether the text is changed before it is cut."""
        return bytes(self.normalizer) != b"null"

    @property
    def spells_bytes(self) -> bool:
        """Whether the model gets ByteLevel's letters and no others."""
        normalizers = _normalizers_of(msgspec.json.decode(self.normalizer))
        steps = [step.type for step in _steps_of(self.pre_tokenizer)]
        after = [*normalizers, *steps][::-1]
        if "ByteLevel" not in after:
            return False
        return _ADD_NOTHING.issuperset(after[: after.index("ByteLevel")])

    @property
    def loses_text(self) -> bool:
        """Whether a BPE model lacks tokens for some text: for some byte, or some letter's bytes."""
        model, ids = self.model, self.model.ids
        if model.type != "BPE":
            return False
        if model.byte_fallback and all(f"<0x{byte:02X}>" in ids for byte in range(256)):
            return False
        fronts = {"", model.continuing_subword_prefix or ""}
        backs = {"", model.end_of_word_suffix or ""}
        return not self.spells_bytes or any(
            front + letter + back not in ids
            for letter in stand_ins()
            for front in fronts
            for back in backs
        )

    @property
    def unknown(self) -> int | None:
        """The id that stands for text without a token; None where every text has tokens."""
        return self.model.unknown if self.loses_text or self.model.type != "BPE" else None


def read_file(content: bytes, *, name: str) -> JsonFile:
    """Parse a tokenizer.json; UsageError for anything else."""
    try:
        return decode_json(content, JsonFile)
    except msgspec.DecodeError as cause:
        raise UsageError(
            f"{name} is not a tokenizer.json: {cause}",
            remedy="pass a file that `tokenizers.Tokenizer.from_file` opens",
        ) from cause


def refuse_unusable(file: JsonFile, *, name: str) -> None:
    """Raise UsageError for a file that tokenizers opens, but whose ids cannot be relied on."""
    if file.model.dropout:
        raise UsageError(
            f"{name} drops merges at random (dropout {file.model.dropout}): no two runs would agree",
            remedy='set "dropout" to null in the file',
        )
    ids = file.model.ids
    check_ids([*ids.values(), *(token.id for token in file.added_tokens)], name=name)
    _refuse_other_ids(file, name=name)
    if not file.loses_text or file.model.unknown is not None:
        return
    missing = [byte for byte, letter in enumerate(stand_ins()) if letter not in ids]
    if file.spells_bytes and missing:
        raise missing_bytes_error(missing, name=name)
    raise UsageError(
        f"{name} has neither a token for every byte nor one for unknown text: text would be lost",
        remedy='name a token of the vocabulary as "unk_token" in its model, or use a byte-level tokenizer',
    )


def missing_bytes_error(missing: Sequence[int], *, name: str) -> UsageError:
    """The error for a vocabulary in which these bytes have no token."""
    return UsageError(
        f"{name} has no token for {len(missing)} of the 256 bytes (0x{missing[0]:02x} is the first): "
        "text that holds them would be lost",
        remedy="train it with all bytes, as `lowtide train-tokenizer` does; in tokenizers by "
        "`initial_alphabet=pre_tokenizers.ByteLevel.alphabet()`",
    )


def why_reference(file: JsonFile, content: bytes) -> str | None:
    """Why gigatoken would not give the ids of tokenizers; None where it does."""
    model = file.model
    if model.type != "BPE":
        return f"its model is {model.type}, and gigatoken knows BPE alone"
    if not model.is_plain:
        return "its model marks the ends or beginnings of words, or falls back on bytes"
    if file.loses_text:
        return "some bytes have no token of their own"
    if file.has_normalizer:
        return "a normalizer changes the text"
    if not _is_understood(content):
        return "its pre-tokenizer, or another key of the file, is one that gigatoken may read otherwise"
    if len(set(model.merges)) < len(model.merges):
        return "a merge stands in it twice"  # tokenizers takes its last rank, gigatoken its first
    if not _spells_bytes_once(file):
        return "tokens share an id, or are not spelled in bytes"
    if file.size > max(_SPARSE_SIZE, 2 * len(model.ids)):
        return "most of its ids stand for no token"
    if any(token.eats_neighbours for token in file.added_tokens):
        return "an added token takes in its neighbours"
    if _may_meet(file.added_tokens):
        return "added tokens may claim the same text"
    return None


def check_ids(ids: Collection[int], *, name: str) -> None:
    """Refuse ids that are negative, or too large for the tables of an encoder."""
    if ids and (min(ids) < 0 or max(ids) > _LARGEST_ID):
        raise UsageError(
            f"{name} has ids from {min(ids)} to {max(ids)}",
            remedy=f"give every token an id from 0 to {_LARGEST_ID}",
        )


def _refuse_other_ids(file: JsonFile, *, name: str) -> None:
    """Refuse added tokens whose ids in the file are not those that tokenizers gives them.

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
                remedy="write the file again: `tokenizers.Tokenizer.from_file(...).save(...)`",
            )
        given[token.content] = number


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


def _spells_bytes_once(file: JsonFile) -> bool:
    """Whether every token is spelled in bytes, and no two share an id."""
    ids = file.model.ids
    added = {token.content for token in file.added_tokens}
    letters = frozenset(stand_ins())
    return len(set(ids.values())) == len(ids) and all(
        letters.issuperset(text) or text in added for text in ids
    )


def find_end_of_text(special_tokens: Mapping[str, int]) -> int | None:
    """The id of the special token that ends a document, recognised by its usual names."""
    return next((special_tokens[n] for n in _END_OF_TEXT_NAMES if n in special_tokens), None)


def plain_pattern(file: JsonFile) -> PatternName | None:
    """The pattern that cuts words, if it is a known one without possessive quantifiers.

    tiktoken's spelling has them; the engine inside tokenizers takes `{1,3}+` and `$` for something else.
    """
    steps = (file.pre_tokenizer.pretokenizers or []) if file.pre_tokenizer else []
    spelled = [step.pattern.regex or "" for step in steps if step.pattern]
    return None if any("++" in text for text in spelled) else pattern_of(file)


def with_added(content: bytes, added: Mapping[str, int], *, keep_special: bool) -> bytes:
    """The tokenizer.json with more special tokens: the delimiter of documents, and private marks.

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

    A normalizer, a space put in front or a token that takes in its neighbours changes them.
    """
    if not file.model.is_plain or file.has_normalizer or file.pre_tokenizer is None:
        return False
    if any(token.eats_neighbours for token in file.added_tokens):
        return False
    steps = file.pre_tokenizer.pretokenizers or [file.pre_tokenizer]
    cuts = all(
        step.type in _CUTTING and step.behavior.lower() != "removed" and not step.add_prefix_space
        for step in steps
    )
    return cuts and any(step.type == "ByteLevel" for step in steps)


def _may_meet(tokens: list[_AddedToken]) -> bool:
    """Whether two added tokens could claim the same bytes: then the order in which they are found matters."""
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


def pattern_of(file: JsonFile) -> PatternName | None:
    """GPT-2's pattern for `ByteLevel` alone; for `[Split(Regex), ByteLevel]` the one that the regex spells."""
    pre = file.pre_tokenizer
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


def _is_understood(content: bytes) -> bool:
    """Whether gigatoken is known to read the file as tokenizers does: all keys and the pre-tokenizer known."""
    parts = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    model = msgspec.json.decode(parts["model"], type=dict[str, msgspec.Raw])
    added = parts.get("added_tokens", b"[]")
    tokens = msgspec.json.decode(added, type=list[dict[str, msgspec.Raw]])
    return (
        parts.keys() <= _KNOWN_KEYS["file"]
        and model.keys() <= _KNOWN_KEYS["model"]
        and all(token.keys() <= _KNOWN_KEYS["added token"] for token in tokens)
        and _is_known_form(msgspec.json.decode(parts.get("pre_tokenizer", b"null")))
    )


def _is_known_form(pre: object) -> bool:
    """Whether gigatoken cuts the words of a pre-tokenizer as tokenizers does.

    The known forms are `ByteLevel` with its own pattern, and a `Split` that keeps every character followed by
    `ByteLevel` without its pattern.
    """
    match pre:
        case {"type": "ByteLevel", "add_prefix_space": False, **rest}:
            return rest.pop("use_regex", True) is True and rest.keys() <= {"trim_offsets"}
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(text), **others}, **split},
                {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "use_regex": False,
                    **rest,
                },
            ],
            **beside,
        }:
            nothing_else = not others and not beside and rest.keys() <= {"trim_offsets"}
            # An inverted split removes what lies between words: nothing, with the known patterns.
            cuts = split in (
                {"behavior": "Isolated", "invert": False},
                {"behavior": "Removed", "invert": True},
            )
            # `\p{N}{1,3}+` takes at most three digits in tiktoken. In tokenizers, whose syntax is Ruby's, it
            # takes any number of them.
            known = text == _ONE_DIGIT or (recognise(text) is not None and "{1,3}+" not in text)
            return nothing_else and cuts and known
    return False
