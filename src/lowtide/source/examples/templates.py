"""Templates by name: the built-in ones, a Jinja file, or the one that comes with a Hugging Face tokenizer.

And the template of a dataset as its model keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from lowtide.errors import UsageError
from lowtide.settings import ExampleKind, Learn, SpecialInText
from lowtide.source.examples import built_in
from lowtide.source.examples.built_in import CHATML, PLAIN, PLAIN_COMPLETION
from lowtide.source.examples.marks import SpecialNames
from lowtide.source.examples.piece_builder import PieceBuilder
from lowtide.source.examples.render_protocol import TOKEN_NAMES, RenderLimits, Setup
from lowtide.source.examples.settings import BUILT_IN, COLUMNS
from lowtide.source.examples.token_names import (
    CONFIG_FILE,
    NOTHING_KNOWN,
    TokenNames,
    names_in,
    read_json,
    read_token_names,
)
from lowtide.source.examples.turns import Turn
from lowtide.units import KIB, format_bytes

_TEMPLATE_LIMIT_BYTES = 64 * KIB
TEMPLATE_FILE = "chat_template.jinja"
_WITH_PROMPT = {
    CHATML: CHATML
    + """\
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
""",
    # Without the blank: in examples it belongs to the token of the answer's first word.
    PLAIN: PLAIN
    + """\
{%- if add_generation_prompt -%}
    {{- '\\n\\nAssistant:' -}}
{%- endif -%}
""",
    PLAIN_COMPLETION: """\
{%- if messages[0].role != 'user' or messages | length > 2 -%}
    {{- raise_exception('a completion has one prompt, and no system message') -}}
{%- endif -%}
{{- messages[0].content -}}
{%- if messages | length == 2 -%}
    {%- generation -%}{{- messages[1].content + eos_token -}}{%- endgeneration -%}
{%- endif -%}
""",
}


class Template(Protocol):
    """Renders an example to text."""

    name: str
    """"chatml", "plain", or the path it came from."""
    source: str
    """The template's Jinja text."""
    digest: str
    """SHA-256 of the source, in hex."""
    whole_messages: bool
    """Whether it wants all keys of a row's messages, or only role and content."""
    tokens: Mapping[str, str]
    """The special tokens that it uses, by name."""

    def expect(self, examples: Sequence[list[Turn]]) -> None:
        """Announce examples that `render` will be called for: they may be rendered in one go."""

    def render(self, turns: list[Turn], learn: Learn, builder: PieceBuilder) -> None:
        """Append the text of an example, in parts of which some are in the loss mask.

        `BadExampleError` if the row is at fault, `SharedFaultError` if the template is."""

    def close(self) -> None:
        """End the process that renders, if there is one."""


def load_template(
    name: str | None,
    kind: ExampleKind,
    *,
    special_tokens: Mapping[str, int],
    end_of_text: str | None,
    names: TokenNames = NOTHING_KNOWN,
    special_in_text: SpecialInText = "text",
    limits: RenderLimits | None = None,
    add_generation_prompt: bool = False,
) -> Template:
    """The built-in template of that name, the one in a file or folder, or the kind's default (None).

    What cannot be loaded is a `UsageError`. `names` are the tokens that a Jinja template knows by name, unless
    a `tokenizer_config.json` comes with the template itself. `add_generation_prompt` is for a Jinja template.
    """
    if name is None:
        name = "plain" if kind == "completion" else "chatml"
    if name == "chatml":
        return built_in.chatml(SpecialNames(special_tokens, special_in_text))
    if name == "plain":
        return built_in.plain(SpecialNames(special_tokens, special_in_text), kind, end_of_text)
    source, own_names = _find(name)
    if not source.strip():
        raise _unusable(name, "is empty")
    from lowtide.source.examples.render_apart import JinjaTemplate  # a process for those who ask

    names = own_names or names
    setup = Setup(
        name=name,
        source=source,
        special_tokens=dict(special_tokens),
        special_in_text=special_in_text,
        variables=dict(names.tokens),
        add_generation_prompt=add_generation_prompt,
        limits=limits or RenderLimits(),
    )
    return JinjaTemplate(setup, names)


def keep_template(source: str, *, tokens: Mapping[str, str], end_of_text: str | None) -> str:
    """The template of a dataset as its model keeps it: `chat_template.jinja`, complete in itself.

    The special tokens it was given by name (`tokens`, or for a built-in one the end of text) stand in front of
    it, so that no other file decides what they are. A built-in one also gets a prompt for the answer
    (`add_generation_prompt`), which its examples have no use for.
    """
    if source in _WITH_PROMPT:
        tokens = {"eos_token": end_of_text or ""}
    given = [
        # A name that was not given was undefined; a tokenizer_config.json must not define it now.
        f"{{% set {name} = {_literal(tokens.get(name))} %}}\n"
        for name in sorted(TOKEN_NAMES | tokens.keys())
        if name in source
    ]
    return "".join(given) + _WITH_PROMPT.get(source, source)


def _literal(token: str | None) -> str:
    return "undefined" if token is None else json.dumps(token, ensure_ascii=False)


def parse_columns(text: str | None, kind: ExampleKind) -> dict[str, str]:
    """The columns that `--column` names: `messages=conversations,role=from`, or one name; empty without it."""
    known = COLUMNS[kind]
    if text is None:
        return {}
    if "=" not in text:
        if kind != "chat" or not text:
            raise UsageError(
                f"{text!r} does not say which column it names",
                remedy="name them all",
                setting="column",
                value=",".join(f"{name}=NAME" for name in known),
            )
        return {known[0]: text}
    columns: dict[str, str] = {}
    for item in text.split(","):
        name, _, column = (side.strip() for side in item.partition("="))
        if name not in known or not column or name in columns:
            raise UsageError(
                f"{item!r} is not one of {', '.join(f'{each}=NAME' for each in known)}",
                remedy=f"for {kind} examples the names are {', '.join(known)}, each once",
                setting="column",
            )
        columns[name] = column
    _check_distinct(columns, kind)
    return columns


def _check_distinct(columns: Mapping[str, str], kind: ExampleKind) -> None:
    """Refuse one column under two names: role and content are keys of a message, apart from the columns."""
    for group in (("messages",), ("role", "content")) if kind == "chat" else (COLUMNS[kind],):
        taken = [columns.get(name, name) for name in group]
        for column in taken:
            if taken.count(column) > 1:
                raise UsageError(
                    f"the column {column!r} has two meanings",
                    remedy="name a column of its own for each",
                    setting="column",
                )


def _find(name: str) -> tuple[str, TokenNames | None]:
    """The template in a file: Jinja text, a tokenizer's settings, or a folder with one of them.

    With it the special tokens that the tokenizer's settings in the same file or folder name.
    """
    path = Path(name)
    if path.is_dir():
        template, config = path / TEMPLATE_FILE, path / CONFIG_FILE
        if template.is_file():
            return _from_file(template), read_token_names(path)
        if config.is_file():
            return _from_config(config)
        raise _unusable(name, f"is a folder without {TEMPLATE_FILE} or {CONFIG_FILE}")
    if not path.is_file():
        raise _unusable(name, f"is neither built in ({', '.join(BUILT_IN)}) nor a file")
    return _from_config(path) if path.suffix == ".json" else (_from_file(path), None)


def _from_file(path: Path) -> str:
    limit_bytes = _TEMPLATE_LIMIT_BYTES
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror or error}") from error
    if len(data) > limit_bytes:
        raise _unusable(path, f"is larger than {format_bytes(limit_bytes)}")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"template {path} is not UTF-8: {error.reason} at byte {error.start}",
            remedy="save it as UTF-8 text",
        ) from error


def _unusable(template: str | Path, why: str) -> UsageError:
    return UsageError(
        f"template {template} {why}",
        remedy="choose chatml, plain, or a Jinja file that this user may read",
        setting="template",
    )


def _from_config(path: Path) -> tuple[str, TokenNames | None]:
    """The chat template of a `tokenizer_config.json`; of several the one called default."""
    config = read_json(path)
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {
            item.get("name"): item.get("template") for item in source if isinstance(item, dict)
        }
        source = named.get("default")
    if not isinstance(source, str):
        raise _unusable(path, "holds no chat_template")
    if len(source) > _TEMPLATE_LIMIT_BYTES:
        raise _unusable(path, f"is larger than {format_bytes(_TEMPLATE_LIMIT_BYTES)}")
    beside = read_token_names(path.parent) if path.name == CONFIG_FILE else None
    return source, beside or names_in(config)
