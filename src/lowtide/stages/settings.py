"""Settings of `tokenize`: made of named values, checked, and decided where they were left open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from lowtide.errors import UsageError, VerificationError
from lowtide.settings import (
    DEFAULT_VAL,
    TokenizeSettings,
    check_choices,
    declared_settings,
    refuse_unknown,
)
from lowtide.shards.manifest import DatasetManifest
from lowtide.source.examples.settings import BUILT_IN
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.storage.decode_json import convert_json, explain_field

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_SettingsT = TypeVar("_SettingsT", bound="DataclassInstance")

LEAST_CONTEXT = 2
"""One token as context and one as target."""
_OF_EXAMPLES = ("template", "learn", "too_long", "context")
_MOST_TAIL, _TAIL_BYTES = 0.1, 1_000_000
"""The share of a single document that is held out, and the most bytes of a long one."""
_FEWEST_BYTES = 100_000
"""A shorter document is not split by default: its tenth would say little."""


def settings_from(of: type[_SettingsT], chosen: Mapping[str, object], *, see: str) -> _SettingsT:
    """Settings out of named values; UsageError for a name or a value that is not one. `see` is a remedy."""
    refuse_unknown(of, chosen)
    check_choices(declared_settings(of), chosen)
    try:
        return convert_json(chosen, of)
    except msgspec.ValidationError as cause:
        name, reason = explain_field(cause)
        raise UsageError(f"{name} is not valid: {reason}", remedy=see, setting=name) from cause


def make_settings(chosen: Mapping[str, object]) -> TokenizeSettings:
    """Settings out of named values; an `eot` of None becomes what the format's readers expect.

    llm.c's want the end-of-text in front of each document, everyone else's behind.
    """
    resolved = dict(chosen)
    if resolved.get("eot") is None and resolved.get("examples") is None:
        resolved["eot"] = "start" if resolved.get("format") == "llmc" else "end"
    return settings_from(TokenizeSettings, resolved, see="see `lowtide tokenize --help`")


def settings_of_manifest(manifest: DatasetManifest) -> TokenizeSettings:
    """How a dataset was made; VerificationError for settings that `tokenize` never had."""
    try:
        found = convert_json(manifest.settings, TokenizeSettings)
        check_settings(found)
    except (msgspec.ValidationError, UsageError) as cause:
        raise VerificationError(
            f"the manifest holds settings that no run has: {cause}",
            remedy="put the manifest back from a copy, or make the dataset again",
        ) from cause
    return found


def is_one_document(settings: TokenizeSettings, inputs: Sequence[InputFile]) -> bool:
    """Whether the input is a single text: a hash can hold out all of it or nothing."""
    rows = settings.examples is not None or settings.separator != "file"
    return not rows and len(inputs) == 1 and inputs[0].kind is InputKind.TEXT


def choose_held_out(settings: TokenizeSettings, inputs: Sequence[InputFile]) -> TokenizeSettings:
    """Decide what is held out. Of a single text it is the tail, if the length is known.

    By default nothing is held out of a single text of unknown length: a hash might hold out all of it.
    """
    share, rule = settings.held_out_share, settings.split_rule
    if is_one_document(settings, inputs) and settings.split is None and share:
        size_bytes = inputs[0].size_bytes
        is_known = inputs[0].stream is None and not inputs[0].compression
        if settings.val is None:
            has_tail = is_known and size_bytes >= _FEWEST_BYTES
            share = max(DEFAULT_VAL, min(_MOST_TAIL, _TAIL_BYTES / size_bytes)) if has_tail else 0.0
        if is_known and share:
            rule = "tail"
    return replace(settings, val=share, split=rule)


def resolve_examples(settings: TokenizeSettings) -> TokenizeSettings:
    """The settings with defaults in place of None, those of examples included."""
    resolved = replace(settings, eot=settings.placement)
    if settings.examples is None:
        return resolved
    return replace(
        resolved,
        learn=settings.learn or "assistant",
        too_long=settings.too_long or "split",
        context=1024 if settings.context is None else settings.context,
    )


def runs_jinja(settings: TokenizeSettings) -> bool:
    """Whether examples go through a Jinja template, which runs in a process of its own."""
    return settings.examples is not None and settings.template not in (None, *BUILT_IN)


def check_settings(settings: TokenizeSettings) -> None:
    """Refuse what cannot be meant, before anything is read."""
    check_choices(declared_settings(TokenizeSettings), settings.as_record())
    check_share(settings.held_out_share, zero="no validation")
    check_separator(settings.separator)
    if settings.examples is None:
        if settings.eot_token is not None and settings.placement == "none":
            raise UsageError(
                f"the end-of-text token {settings.eot_token} is named, and placed nowhere",
                remedy="leave out its name, or its placement of none",
                setting="eot_token",
            )
        _refuse_settings_of_examples(settings)
    else:
        _check_examples(settings)


def check_share(val: object, *, zero: str) -> None:
    """UsageError unless it is a number from 0, which means `zero`, to below 1."""
    if not (isinstance(val, int | float) and math.isfinite(val) and 0 <= val < 1):
        raise UsageError(
            f"val cannot be {val!r}: it is a share of the data",
            remedy=f"choose a number from 0 ({zero}) to below 1",
            setting="val",
            value=DEFAULT_VAL,
        )


def check_separator(separator: str) -> None:
    """UsageError for an empty separator."""
    if not separator:
        raise UsageError(
            "the separator is empty",
            remedy="choose file, line, blank-line, or the text that stands between documents",
            setting="separator",
        )


def _refuse_settings_of_examples(settings: TokenizeSettings) -> None:
    for name in _OF_EXAMPLES:
        if getattr(settings, name) is not None:
            raise UsageError(
                f"{name.replace('_', '-')} is about examples, and the input is read as text",
                remedy="leave it out, or read chat, instruction or completion examples",
                setting="examples",
                value="chat",
            )


def _check_examples(settings: TokenizeSettings) -> None:
    if settings.context is not None and settings.context < LEAST_CONTEXT:
        raise UsageError(
            f"a context of {settings.context} leaves no room for an example",
            remedy=f"choose {LEAST_CONTEXT} or more",
            setting="context",
            value=1024,
        )
    if settings.separator != "file":
        raise UsageError(
            "separator parts documents of text, and examples are rows",
            remedy="leave it out",
            setting="separator",
        )
