"""The forms of a tokenizer.json that gigatoken is known to read as tokenizers does."""

from __future__ import annotations

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
_ONE_DIGIT = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
"""Qwen's expression: cl100k's with every digit a word."""


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
            cuts = split in (
                {"behavior": "Isolated", "invert": False},
                {"behavior": "Removed", "invert": True},
            )
            return nothing_else and cuts and _is_known_expression(text)
    return False


def _is_known_expression(text: str) -> bool:
    """Whether it is one of the field's patterns in a spelling that tokenizers reads as tiktoken does.

    `\\p{N}{1,3}+` takes at most three digits in tiktoken; in tokenizers, whose syntax is Ruby's, any number.
    """
    return text == _ONE_DIGIT or (recognise(text) is not None and "{1,3}+" not in text)
