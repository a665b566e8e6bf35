"""How an inbox's files are read: `lowtide.toml` in its folder, every line of which may be left out.

    examples = "chat"            # instruction, completion, or none for plain documents
    template = "chat.jinja"      # beside this file
    val = 0.01
    marker = ".done"             # a file counts when NAME.done stands beside it

All but `marker` are settings of `tokenize`, with another default for two of them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.errors import UsageError
from lowtide.settings import (
    INBOX_NAMES,
    SETTINGS_NAME,
    TokenizeSettings,
    check_choices,
    declared_settings,
)
from lowtide.source.find_inputs import is_row_file, is_text_file
from lowtide.stages.settings import check_settings, resolve_examples, settings_from
from lowtide.storage.sealed_json import JsonObject
from lowtide.units import printable

_DEFAULTS = {"examples": "chat", "val": 0.01}
_DOCUMENTS = "none"
"""What `examples` is set to for plain documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxSettings:
    """As they stand in the file, or by default."""

    tokenize: TokenizeSettings
    """How a file is tokenized; a `context` of None is the model's own."""
    marker: str | None = None
    """What a file's name is followed by in the name of the file that says it is whole."""

    def as_record(self) -> JsonObject:
        """What a run stores of them, by name. How files are marked is not part of it."""
        record: JsonObject = {name: getattr(self.tokenize, name) for name in INBOX_NAMES}
        return record | {"examples": self.tokenize.examples or _DOCUMENTS}


def read_inbox_settings(inbox: Path) -> InboxSettings:
    """The settings of a folder; UsageError for a path that is not a folder, and for what cannot be meant."""
    _check_folder(inbox)
    path = inbox / SETTINGS_NAME
    named = {name.replace("-", "_"): value for name, value in _read(path).items()}
    unknown = [name for name in named if name not in (*INBOX_NAMES, "marker")]
    if unknown:
        known = ", ".join(name.replace("_", "-") for name in (*INBOX_NAMES, "marker"))
        raise UsageError(
            f"{path} sets {', '.join(unknown)}, which an inbox does not know",
            remedy=f"it knows {known}",
        )
    marker = _check_marker(named.pop("marker", None), path)
    with naming_the_line(inbox):
        tokenize = _tokenize_settings(named)
    return InboxSettings(tokenize=tokenize, marker=marker)


def _tokenize_settings(named: dict[str, object]) -> TokenizeSettings:
    """The lines of the file; what is wrong whatever the model is, is refused before one is chosen by it."""
    kinds = next(one for one in declared_settings(TokenizeSettings) if one.name == "examples")
    check_choices([replace(kinds, choices=(*kinds.choices, _DOCUMENTS))], named)
    if named.get("examples") == _DOCUMENTS:
        named["examples"] = None
    chosen = {**_DEFAULTS, "split": "hash", **named}
    found = settings_from(TokenizeSettings, chosen, see="correct that line")
    check_settings(found)
    return found


def settings_for_model(settings: InboxSettings, inbox: Path, *, context: int) -> TokenizeSettings:
    """What a file is tokenized with, for a model with windows of `context` tokens."""
    found = settings.tokenize
    if found.context is not None and found.context > context:
        raise UsageError(
            f"{inbox / SETTINGS_NAME} allows examples of {found.context} tokens, and the model's windows "
            f"have {context}",
            remedy=f"set `context = {context}` there, or leave it out",
        )
    if found.examples is not None:
        found = replace(found, context=found.context or context)
    template = None if found.template is None else beside(found.template, inbox)
    return resolve_examples(
        replace(found, tokenizer=beside(found.tokenizer, inbox), template=template)
    )


@contextmanager
def naming_the_line(inbox: Path) -> Iterator[None]:
    """Inside, an error about a setting of `tokenize` names the line of the inbox's `lowtide.toml`."""
    try:
        yield
    except UsageError as error:
        path = inbox / SETTINGS_NAME
        raise UsageError(
            f"{path}: {error.problem}", remedy=f"{error.remedy_as(as_line)}, in {path}"
        ) from error


def as_line(setting: str, value: object = None) -> str:
    """A setting in `lowtide.toml`: `val = 0.1`, in backticks."""
    name = setting.replace("_", "-")
    return f"`{name}`" if value is None else f"`{name} = {json.dumps(value)}`"


def beside(name: str, inbox: Path) -> str:
    """A file beside the settings, or whatever else the name stands for."""
    path = inbox / name
    return str(path.absolute()) if name and path.exists() else name


def _check_folder(inbox: Path) -> None:
    """UsageError for what is not a folder, or cannot be looked into."""
    try:
        is_folder = inbox.is_dir()
        if is_folder:
            next(inbox.iterdir(), None)
            (inbox / SETTINGS_NAME).exists()
        str(inbox).encode()
    except OSError as cause:
        raise UsageError(
            f"{inbox} cannot be looked into: {cause.strerror}",
            remedy="allow this user to read it, or name another folder",
        ) from cause
    except UnicodeEncodeError as cause:
        raise UsageError(
            f"the name of the folder {printable(str(inbox))} is not UTF-8",
            remedy="rename it, or name a link to it",
        ) from cause
    if not is_folder:
        raise UsageError(
            f"{inbox} is not a folder", remedy="make it, or name the folder that files appear in"
        )


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise UsageError(
            f"{path} cannot be read as TOML: {cause}", remedy="correct it, or remove it"
        ) from cause


def _check_marker(marker: object, path: Path) -> str | None:
    """The marker; UsageError for one that no name can end in, or that files to be read end in themselves."""
    if marker is None:
        return None
    if isinstance(marker, str) and marker and "/" not in marker and "\0" not in marker:
        marked = Path(f"a{marker}")
        if not is_row_file(marked) and not is_text_file(marked):
            return marker
    raise UsageError(
        f"{path} sets the marker {marker!r}, which cannot mark a file of the inbox as whole",
        remedy='set one such as `marker = ".done"`',
    )
