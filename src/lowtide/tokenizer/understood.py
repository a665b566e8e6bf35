"""The forms of a tokenizer.json that gigatoken is known to read as tokenizers does."""

from __future__ import annotations

import re

import msgspec

from lowtide.tokenizer.patterns import recognise

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
"""What we know the meaning of. A key beside these may change ids in a way that the fast encoder ignores."""
_KNOWN_CLASSES = frozenset({"L", "Lu", "Ll", "Lt", "Lm", "Lo", "N", "Nd", "M"})


def is_understood(content: bytes) -> bool:
    """Whether every key is a known one, and the pre-tokenizer one of two forms."""
    parts = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    return _has_known_keys(parts) and _is_known_form(
        msgspec.json.decode(parts.get("pre_tokenizer", b"null"))
    )


def _has_known_keys(parts: dict[str, msgspec.Raw]) -> bool:
    model = msgspec.json.decode(parts["model"], type=dict[str, msgspec.Raw])
    added = parts.get("added_tokens", b"[]")
    tokens = msgspec.json.decode(added, type=list[dict[str, msgspec.Raw]])
    return (
        parts.keys() <= _KNOWN_KEYS["file"]
        and model.keys() <= _KNOWN_KEYS["model"]
        and all(token.keys() <= _KNOWN_KEYS["added token"] for token in tokens)
    )


def _is_known_form(pre: object) -> bool:
    """Whether a pre-tokenizer is one whose words gigatoken cuts as tokenizers does.

    `ByteLevel` with its own pattern, or a `Split` that keeps every character, then `ByteLevel` without.
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
            # What an inverted split removes is what lies between words: nothing, by the known patterns.
            removed = {"behavior": "Removed", "invert": True}
            cuts = split == {"behavior": "Isolated", "invert": False} or (
                split == removed and recognise(text) is not None
            )
            return nothing_else and cuts and _asks_for_known_classes(text)
    return False


def _asks_for_known_classes(expression: str) -> bool:
    """Whether words are cut by letters, numbers, marks and blanks alone.

    On other classes (punctuation, symbols) the fast encoder's Unicode version differs in ways we do not know.
    """
    classes = re.findall(r"\\[pP]\{\^?(\w+)\}|\[:(\w+):\]", expression)
    return all(name in _KNOWN_CLASSES and not posix for name, posix in classes)
