"""The special tokens that a template knows by name (`bos_token`, `eos_token`), as transformers finds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lowtide.errors import UsageError
from lowtide.storage.decode_json import decode_json
from lowtide.units import MIB, format_bytes, printable

CONFIG_FILE = "tokenizer_config.json"
_LEGACY_FILE = "special_tokens_map.json"
_LIMIT_BYTES = 32 * MIB
_REMEDY = "put back the file that came with the tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNames:
    """The names by which a template knows a tokenizer's special tokens."""

    tokens: Mapping[str, str]
    is_complete: bool
    """True: a missing name is undefined, as in transformers. False: it is unknown."""


NOTHING_KNOWN = TokenNames(tokens={}, is_complete=False)


def read_token_names(folder: Path) -> TokenNames | None:
    """The names in the files beside a tokenizer; None if there are no such files.

    As transformers has it, `special_tokens_map.json` counts only where `tokenizer_config.json` does not list
    added tokens itself, and then it comes first.
    """
    config_path, legacy_path = folder / CONFIG_FILE, folder / _LEGACY_FILE
    config = read_json(config_path) if config_path.is_file() else None
    legacy = None
    if legacy_path.is_file() and "added_tokens_decoder" not in (config or {}):
        legacy = read_json(legacy_path)
    if config is None and legacy is None:
        return None
    return names_in({**(config or {}), **(legacy or {})})


def names_in(config: Mapping[str, object]) -> TokenNames:
    """The names in the content of a `tokenizer_config.json`."""
    extra = config.get("extra_special_tokens")
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    if isinstance(extra, dict):
        named |= extra
    tokens = {name: _content(value) for name, value in named.items()}
    return TokenNames(
        tokens={name: token for name, token in tokens.items() if token is not None},
        is_complete=True,
    )


def read_json(path: Path) -> dict[str, object]:
    """A tokenizer's settings; what is not such a file is a `UsageError`."""
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT_BYTES + 1)
        if len(data) > _LIMIT_BYTES:
            raise UsageError(f"{path} is larger than {format_bytes(_LIMIT_BYTES)}", remedy=_REMEDY)
        return decode_json(data, dict[str, object])
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}",
            remedy="make it readable for this user",
        ) from error
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{path} does not hold a tokenizer's settings: {printable(str(error))}", remedy=_REMEDY
        ) from error


def _content(value: object) -> str | None:
    """A token: a string, or an object that holds it as content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
