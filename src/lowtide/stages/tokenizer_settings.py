"""Settings of `train-tokenizer`: made of named values, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowtide.errors import UsageError
from lowtide.settings import (
    END_OF_TEXT,
    TokenizerSettings,
    check_choices,
    declared_settings,
)
from lowtide.stages.settings import check_separator, check_share, settings_from
from lowtide.tokenizer.byte_pairs import unspell

_BYTES = 256
_LARGEST_VOCABULARY = 1 << 24
_LONGEST_SPECIAL_BYTES = 1024
"""Every beginning of a special token is looked for wherever text is cut."""


def make_tokenizer_settings(chosen: Mapping[str, object]) -> TokenizerSettings:
    """Settings out of named values. One size or token may stand by itself; sizes leave ascending, each once."""
    resolved = dict(chosen)
    for name in ("vocab_size", "special_token"):
        if isinstance(resolved.get(name), int | str):
            resolved[name] = (resolved[name],)
    sizes = resolved.get("vocab_size")
    if isinstance(sizes, Sequence):
        resolved["vocab_size"] = tuple(sorted(set(sizes)))
    return settings_from(TokenizerSettings, resolved, see="see `lowtide train-tokenizer --help`")


def choose_special_tokens(named: Sequence[str], *, none: bool) -> tuple[str, ...]:
    """The special tokens named, `<|endoftext|>` when none is, or none at all when that is asked for."""
    if none and named:
        raise UsageError(
            f"--no-special-token and --special-token {named[0]} contradict each other",
            remedy="leave out one of them",
            setting="special_token",
        )
    return () if none else tuple(named) or (END_OF_TEXT,)


def check_tokenizer_settings(settings: TokenizerSettings) -> None:
    """Refuse what cannot be meant, before anything is read."""
    check_choices(declared_settings(TokenizerSettings), settings.as_record())
    _check_special_tokens(settings.special_token)
    _check_sizes(settings)
    if settings.min_frequency < 0:
        raise UsageError(
            f"min-frequency cannot be {settings.min_frequency}: it is below zero",
            remedy="choose how often a pair must come to be merged",
            setting="min_frequency",
            value=2,
        )
    check_share(settings.val, zero="learn from everything")
    check_separator(settings.separator)


def _check_sizes(settings: TokenizerSettings) -> None:
    if not settings.vocab_size:
        raise UsageError("no vocabulary size is given", remedy="pass `--vocab-size 32000`")
    least = _BYTES + len(settings.special_token)
    smallest, largest = min(settings.vocab_size), max(settings.vocab_size)
    if smallest < least:
        specials = len(settings.special_token)
        raise UsageError(
            f"a vocabulary of {smallest} is too small: the 256 bytes and {specials} special "
            f"token{'' if specials == 1 else 's'} are {least} tokens already",
            remedy=f"pass `--vocab-size {least}` or more",
        )
    if largest > _LARGEST_VOCABULARY:
        raise UsageError(
            f"a vocabulary of {largest} is larger than the {_LARGEST_VOCABULARY} that can be learnt",
            remedy=f"pass `--vocab-size {_LARGEST_VOCABULARY}` or less",
        )


def _check_special_tokens(tokens: Sequence[str]) -> None:
    for token in tokens:
        if not token:
            raise UsageError(
                "a special token is empty",
                remedy="pass its text, such as `--special-token '<|endoftext|>'`",
            )
        try:
            token.encode()
        except UnicodeEncodeError as cause:
            raise UsageError(
                f"the special token {token!r} is not valid text",
                remedy="pass text that can be written as UTF-8",
            ) from cause
        if len(token.encode()) > _LONGEST_SPECIAL_BYTES:
            raise UsageError(
                f"the special token {token[:20]}… is {len(token.encode())} bytes long",
                remedy=f"pass one of at most {_LONGEST_SPECIAL_BYTES} bytes",
            )
        if tokens.count(token) > 1:
            raise UsageError(
                f"the special token {token} is there {tokens.count(token)} times",
                remedy="pass each special token once",
            )
        _refuse_spelling(token)


def _refuse_spelling(token: str) -> None:
    """Files spell every byte as a letter: a special token must not be how an ordinary one is spelled.

    Printable ASCII stands for itself, and text is cut wherever the special token stands, so no merge can make
    one of two letters or more. `Ġthe`, though, is how ` the` is spelled, and `a` is a byte.
    """
    spelled = unspell(token)
    if spelled is not None and (len(token) == 1 or spelled != token.encode()):
        raise UsageError(
            f"the special token {token} is how the files of a tokenizer spell the ordinary token {spelled!r}",
            remedy="pass another text, such as `--special-token '<|endoftext|>'`",
        )
