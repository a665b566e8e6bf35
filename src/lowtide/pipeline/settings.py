"""What decides the output of `tokenize`: every field here may change bytes, none of them memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import msgspec

from lowtide.errors import UsageError
from lowtide.shards.layout import Format, Placement
from lowtide.source.blocks import BadText
from lowtide.tokenizer.reference import SpecialInText

SplitRule = Literal["hash", "tail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeSettings:
    """The resolved settings of a run, as they are stored with its output."""

    tokenizer: str = "gpt2"
    column: str = "text"
    separator: str = "file"
    format: Format = "npy"
    shard_tokens: int = 100_000_000
    val: float = 0.0005
    split: SplitRule = "hash"
    eot: Placement = "end"
    bad_text: BadText = "fail"
    special_in_text: SpecialInText = "text"

    def as_record(self) -> dict[str, str | int | float]:
        """Plain values under their names, for the manifest and for comparing two runs."""
        return asdict(self)


def make_settings(chosen: Mapping[str, str | int | float | None]) -> TokenizeSettings:
    """Settings out of named values; an `eot` of None becomes what the format's readers expect.

    llm.c's want the end-of-text in front of each document, everyone else's behind.
    """
    resolved = dict(chosen)
    if resolved.get("eot") is None:
        resolved["eot"] = "start" if resolved.get("format") == "llmc" else "end"
    try:
        return msgspec.convert(resolved, TokenizeSettings)
    except msgspec.ValidationError as cause:
        raise UsageError(
            f"a setting is not valid: {cause}", remedy="see `lowtide tokenize --help`"
        ) from cause


def check_settings(settings: TokenizeSettings) -> None:
    """Refuse what cannot be meant, before anything is read."""
    check_choice("format", settings.format, get_args(Format))
    check_choice("split", settings.split, get_args(SplitRule))
    check_choice("eot", settings.eot, get_args(Placement))
    check_choice("bad-text", settings.bad_text, get_args(BadText))
    check_choice("special-in-text", settings.special_in_text, get_args(SpecialInText))
    if not (math.isfinite(settings.val) and 0 <= settings.val < 1):
        raise UsageError(
            f"--val {settings.val} is not a share of the data",
            remedy="pass a number from 0 (no validation) to below 1, such as `--val 0.0005`",
        )
    if not settings.separator:
        raise UsageError(
            "the separator is empty",
            remedy="pass file, line, blank-line, or the text that stands between documents",
        )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise UsageError(
            f"--{name} cannot be {value!r}", remedy=f"pass one of {', '.join(choices)}"
        )
