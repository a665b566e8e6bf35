"""Settings of `tokenize`: made of named values, checked, and decided where they were left open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from lowtide.errors import UsageError, VerificationError
from lowtide.settings import (
    DEFAULT_VAL,
    SettingsT,
    TokenizeSettings,
    check_choices,
    refuse_unknown,
)
from lowtide.shards.manifest import DatasetManifest
from lowtide.source.examples.settings import BUILT_IN
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.storage.decode_json import convert_json

LEAST_CONTEXT = 2
"""One token as context and one as target."""
_OF_EXAMPLES = ("template", "learn", "too_long", "context")
_MOST_TAIL, _TAIL_BYTES = 0.1, 1_000_000
"""The share of a single document that is held out, and the most bytes of a long one."""
_FEWEST_BYTES = 100_000
"""A shorter document is not split by default: its tenth would say little."""


def make_settings(chosen: Mapping[str, object]) -> TokenizeSettings:
    """Settings out of named values; an `eot` of None becomes what the format's readers expect.

    llm.c's want the end-of-text in front of each document, everyone else's behind.
    """
    resolved = dict(chosen)
    if resolved.get("eot") is None and resolved.get("examples") is None:
        resolved["eot"] = "start" if resolved.get("format") == "llmc" else "end"
    return to_settings(resolved, TokenizeSettings, "tokenize")


def to_settings(chosen: Mapping[str, object], kind: type[SettingsT], command: str) -> SettingsT:
    """Settings out of named values; UsageError for an unknown name and for a value of another type."""
    refuse_unknown(kind, chosen)
    try:
        return convert_json(dict(chosen), kind)
    except msgspec.ValidationError as cause:
        raise UsageError(
            f"a setting is not valid: {cause}", remedy=f"see `lowtide {command} --help`"
        ) from cause


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
        is_known = not inputs[0].is_stdin and not inputs[0].compression
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
    check_choices(settings)
    check_share(settings.held_out_share, zero="no validation")
    check_separator(settings.separator)
    if settings.examples is None:
        if settings.eot_token is not None and settings.placement == "none":
            raise UsageError(
                "--eot-token names a token that `--eot none` leaves out",
                remedy="leave out one of them",
            )
        _refuse_settings_of_examples(settings)
    else:
        _check_examples(settings)


def check_share(val: object, *, zero: str) -> None:
    """UsageError unless it is a number from 0, which means `zero`, to below 1."""
    if not (isinstance(val, int | float) and math.isfinite(val) and 0 <= val < 1):
        raise UsageError(
            f"--val {val!r} is not a share of the data",
            remedy=f"pass a number from 0 ({zero}) to below 1, such as `--val 0.0005`",
        )


def check_separator(separator: str) -> None:
    """UsageError for an empty separator."""
    if not separator:
        raise UsageError(
            "the separator is empty",
            remedy="pass file, line, blank-line, or the text that stands between documents",
        )


def _refuse_settings_of_examples(settings: TokenizeSettings) -> None:
    for name in _OF_EXAMPLES:
        if getattr(settings, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} is about examples, and the input is read as text",
                remedy="pass `--examples chat`, instruction or completion too, or leave it out",
            )


def _check_examples(settings: TokenizeSettings) -> None:
    if settings.context is not None and settings.context < LEAST_CONTEXT:
        raise UsageError(
            f"--context {settings.context} leaves no room for an example",
            remedy=f"pass {LEAST_CONTEXT} or more, such as `--context 1024`",
        )
    if settings.separator != "file":
        raise UsageError(
            "--separator parts documents of text, and examples are rows",
            remedy="leave `--separator` out",
        )
