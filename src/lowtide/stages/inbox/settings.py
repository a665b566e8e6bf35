"""How an inbox's files are read: `lowtide.toml` in its folder, every line of which may be left out.

examples = "chat"            # instruction, completion, or none for plain documents
template = "chat.jinja"      # beside this file
val = 0.01
marker = ".done"             # a file counts when NAME.done stands beside it
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

from lowtide.errors import UsageError
from lowtide.settings import BadText, Learn, SpecialInText, TokenizeSettings, TooLong
from lowtide.source.find_inputs import is_row_file, is_text_file
from lowtide.stages.settings import check_settings
from lowtide.storage.decode_json import convert_json
from lowtide.storage.sealed_json import JsonObject
from lowtide.units import printable

SETTINGS_NAME = "lowtide.toml"
InboxExamples: TypeAlias = Literal["chat", "instruction", "completion", "none"]
_CHOICES: dict[str, tuple[str, ...]] = {
    "examples": get_args(InboxExamples),
    "learn": get_args(Learn),
    "too_long": get_args(TooLong),
    "bad_text": get_args(BadText),
    "special_in_text": get_args(SpecialInText),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxSettings:
    """As they stand in the file, or by default. The names are those of `tokenize`."""

    examples: InboxExamples = "chat"
    template: str | None = None
    learn: Learn | None = None
    too_long: TooLong | None = None
    context: int | None = None
    """The most tokens of an example; None for the model's context."""
    column: str | None = None
    separator: str = "file"
    tokenizer: str = "gpt2"
    bad_text: BadText = "fail"
    special_in_text: SpecialInText = "text"
    val: float = 0.01
    marker: str | None = None
    """What a file's name is followed by in the name of the file that says it is whole."""

    def as_record(self) -> JsonObject:
        """Plain values under their names."""
        return asdict(self)


def read_inbox_settings(inbox: Path) -> InboxSettings:
    """The settings of a folder; UsageError for a folder that is none, and for what cannot be meant."""
    _check_folder(inbox)
    path = inbox / SETTINGS_NAME
    named = {name.replace("-", "_"): value for name, value in _read(path).items()}
    known = [field.name for field in fields(InboxSettings)]
    unknown = [name for name in named if name not in known]
    if unknown:
        raise UsageError(
            f"{path} sets {', '.join(unknown)}, which an inbox does not know",
            remedy=f"it knows {', '.join(name.replace('_', '-') for name in known)}",
        )
    _check_choices(named, path)
    try:
        settings = convert_json(named, InboxSettings)
    except msgspec.ValidationError as cause:
        raise UsageError(f"{path}: {cause}", remedy="correct that line of the file") from cause
    _check_marker(settings.marker, path)
    _check_values(settings, inbox)
    return settings


def tokenize_settings(settings: InboxSettings, inbox: Path, *, context: int) -> TokenizeSettings:
    """What `tokenize` is told, for a model with windows of `context` tokens; refused if it cannot be meant."""
    found = TokenizeSettings(
        tokenizer=beside(settings.tokenizer, inbox),
        column=settings.column,
        separator=settings.separator,
        bad_text=settings.bad_text,
        special_in_text=settings.special_in_text,
        val=settings.val,
        split="hash",
    )
    if settings.examples == "none":
        _refuse_for_documents(settings, inbox / SETTINGS_NAME)
    else:
        found = _with_examples(found, settings, inbox, context)
    with told_of_toml(inbox):
        check_settings(found)
    return found


def _with_examples(
    found: TokenizeSettings, settings: InboxSettings, inbox: Path, context: int
) -> TokenizeSettings:
    from lowtide.stages.settings import resolve_examples

    if settings.context is not None and settings.context > context:
        raise UsageError(
            f"{inbox / SETTINGS_NAME} allows examples of {settings.context} tokens, and the model's windows "
            f"have {context}",
            remedy=f"set `context = {context}` there, or leave it out",
        )
    assert settings.examples != "none", "these are documents"
    template = None if settings.template is None else beside(settings.template, inbox)
    named = replace(
        found,
        examples=settings.examples,
        template=template,
        learn=settings.learn,
        too_long=settings.too_long,
        context=settings.context or context,
        eot="none",
    )
    return resolve_examples(named)


@contextmanager
def told_of_toml(inbox: Path) -> Iterator[None]:
    """Inside, what `tokenize` would say about its flags is said about the lines of the inbox's settings."""
    try:
        yield
    except UsageError as error:
        path = inbox / SETTINGS_NAME
        raise UsageError(
            f"{path}: {in_toml(error.problem)}", remedy=f"{in_toml(error.remedy)}, in {path}"
        ) from error


def in_toml(text: str) -> str:
    """The text with flags of `tokenize` written as lines of `lowtide.toml`: `--val 0.1` is `val = 0.1`."""
    names = "|".join(field.name.replace("_", "-") for field in fields(InboxSettings))
    text = re.sub(rf"`--({names}) ([^`]+)`", _as_line, text)
    text = re.sub(rf"--({names}) (-?[\d.]+(?:e-?\d+)?|inf|nan)(?= )", _as_line, text)
    return re.sub(rf"(?<![\w-])--({names})\b", r"\1", text)


def _as_line(found: re.Match[str]) -> str:
    quote = "`" if found[0].startswith("`") else ""
    is_number = re.fullmatch(r"-?[\d.e-]+|inf|nan", found[2])
    value = found[2] if is_number else f'"{found[2]}"'
    return f"{quote}{found[1]} = {value}{quote}"


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


def _check_choices(named: dict[str, object], path: Path) -> None:
    for name, choices in _CHOICES.items():
        if name in named and named[name] not in choices:
            raise UsageError(
                f"{path}: {name.replace('_', '-')} cannot be {named[name]!r}",
                remedy=f"set one of {', '.join(choices)}, or remove that line",
            )


def _check_values(settings: InboxSettings, inbox: Path) -> None:
    """What is wrong whatever the model is, before one is chosen by it."""
    kind = None if settings.examples == "none" else settings.examples
    found = TokenizeSettings(
        val=settings.val,
        split="hash",
        separator=settings.separator,
        examples=kind,
        context=settings.context if kind else None,
    )
    with told_of_toml(inbox):
        check_settings(found)


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise UsageError(
            f"{path} cannot be read as TOML: {cause}", remedy="correct it, or remove it"
        ) from cause


def beside(name: str, inbox: Path) -> str:
    """A file beside the settings, or whatever else the name stands for."""
    path = inbox / name
    return str(path.absolute()) if name and path.exists() else name


def _refuse_for_documents(settings: InboxSettings, path: Path) -> None:
    names = ("template", "learn", "too_long", "context")
    given = [name for name in names if getattr(settings, name) is not None]
    if given:
        raise UsageError(
            f"{path} sets {given[0].replace('_', '-')}, and documents have none of it",
            remedy='remove that line, or set `examples = "chat"`',
        )


def _check_marker(marker: str | None, path: Path) -> None:
    if marker is not None and (not marker or "/" in marker or "\0" in marker):
        raise UsageError(
            f"{path} sets the marker {marker!r}, which no file's name can end in",
            remedy='set one such as `marker = ".done"`',
        )
    marked = None if marker is None else Path(f"a{marker}")
    if marked is not None and (is_row_file(marked) or is_text_file(marked)):
        raise UsageError(
            f"{path} sets the marker {marker!r}, which is how files to be read end themselves",
            remedy='set one such as `marker = ".done"`',
        )
