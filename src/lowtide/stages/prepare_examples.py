"""Decide how examples are read before the first one is: template, columns, marks, loss mask."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lowtide.errors import UsageError
from lowtide.settings import TokenizeSettings
from lowtide.source.examples.settings import ExampleReading
from lowtide.source.find_inputs import InputFile, InputKind
from lowtide.stages.encode_blocks import ExampleRecipe
from lowtide.tokenizer.encode import EncodeSettings
from lowtide.tokenizer.learnt_tokens import measure_tokens
from lowtide.tokenizer.vocabulary import NAMES, Vocabulary

if TYPE_CHECKING:
    from lowtide.shards.manifest import TokenizerRecord
    from lowtide.source.examples.render_protocol import RenderLimits
    from lowtide.source.examples.templates import Template
    from lowtide.source.examples.token_names import TokenNames

_NAME = re.compile(r"<\|[^|<>\s]+\|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedExamples:
    """How rows are read as examples, encoded, and fitted."""

    settings: TokenizeSettings
    """The settings, with the template that was found."""
    reading: ExampleReading
    encode: EncodeSettings
    recipe: ExampleRecipe


def prepare_examples(
    settings: TokenizeSettings,
    vocabulary: Vocabulary,
    inputs: Sequence[InputFile],
    delimiter: bytes,
    limits: RenderLimits | None = None,
) -> PreparedExamples | None:
    """How the settings, which are resolved, read examples; None for text. Reads the template, and no row.

    The caller closes the template: a Jinja file has a process of its own.
    """
    if settings.examples is None:
        return None
    assert settings.too_long, "settings are resolved first"
    assert settings.context, "settings are resolved first"
    _refuse_text(inputs)
    encode = mark_special_tokens(vocabulary, delimiter)
    recipe = ExampleRecipe(
        lengths=None if settings.learn == "all" else measure_tokens(encode),
        context=settings.context,
        too_long=settings.too_long,
    )
    reading = read_template(settings, vocabulary, limits)  # last: an error above starts no process
    return PreparedExamples(
        settings=record_template(settings, reading.template),
        reading=reading,
        encode=encode,
        recipe=recipe,
    )


def read_template(
    settings: TokenizeSettings, vocabulary: Vocabulary, limits: RenderLimits | None = None
) -> ExampleReading:
    """How rows become text, by the template in the settings. The caller closes the template."""
    from lowtide.source.examples.templates import load_template, parse_columns

    assert settings.examples, "only examples have a template"
    assert settings.learn, "settings are resolved first"
    columns = parse_columns(settings.column, settings.examples)
    return ExampleReading(
        kind=settings.examples,
        template=load_template(
            settings.template,
            settings.examples,
            special_tokens=vocabulary.special_tokens,
            end_of_text=_end_of_text(vocabulary),
            names=_find_token_names(settings.tokenizer, vocabulary),
            special_in_text=settings.special_in_text,
            limits=limits,
        ),
        learn=settings.learn,
        columns=columns,
    )


def record_template(settings: TokenizeSettings, template: Template) -> TokenizeSettings:
    """The settings with the template's name, text and tokens: a run is not resumed with another template."""
    tokens = msgspec.json.encode(dict(sorted(template.tokens.items()))).decode()
    return replace(
        settings,
        template=template.name,
        template_text=template.source,
        template_tokens=tokens if template.tokens else None,
    )


def template_to_keep(text: str, tokens: str | None, tokenizer: Vocabulary | TokenizerRecord) -> str:
    """The recorded template (`record_template`) as a model that is trained on its examples keeps it."""
    from lowtide.source.examples.templates import keep_template

    given: dict[str, str] = msgspec.json.decode(tokens or "{}", type=dict[str, str])
    return keep_template(text, tokens=given, end_of_text=_end_of_text(tokenizer))


def _find_token_names(tokenizer: str, vocabulary: Vocabulary) -> TokenNames:
    """The special tokens that a template may use by name; for published encodings no file is needed."""
    from lowtide.source.examples.token_names import NOTHING_KNOWN, TokenNames, read_token_names

    if tokenizer in NAMES:
        end = _end_of_text(vocabulary) or ""
        names = ("bos_token", "eos_token", "unk_token") if tokenizer == "gpt2" else ("eos_token",)
        return TokenNames(tokens=dict.fromkeys(names, end), is_complete=False)
    path = Path(tokenizer)
    return read_token_names(path if path.is_dir() else path.parent) or NOTHING_KNOWN


def _end_of_text(vocabulary: Vocabulary | TokenizerRecord) -> str | None:
    names = {number: name for name, number in vocabulary.special_tokens.items()}
    return None if vocabulary.end_of_text is None else names.get(vocabulary.end_of_text)


def mark_special_tokens(vocabulary: Vocabulary, delimiter: bytes) -> EncodeSettings:
    """How examples are encoded: special tokens are marks, and their names are text.

    `--special-in-text` is applied earlier, where a template can still be distinguished from its contents.
    """
    from lowtide.source.examples.marks import assign_marks

    special = vocabulary.special_tokens
    return EncodeSettings(
        vocabulary=vocabulary,
        delimiter=delimiter,
        marks={mark: special[name] for name, mark in assign_marks(special).items()},
    )


def describe_spelled_out(settings: TokenizeSettings, vocabulary: Vocabulary) -> str:
    """A note on names in the template that look like special tokens the tokenizer does not have; or empty.

    Such a name becomes the same tokens whether the template wrote it or a message did.
    """
    known = {*vocabulary.special_tokens, *vocabulary.added_tokens}
    written = _NAME.findall(settings.template_text or "")
    given: dict[str, str] = msgspec.json.decode(settings.template_tokens or "{}")
    spelled = dict.fromkeys([*written, *filter(None, given.values())])
    names = [name for name in spelled if name not in known]
    if not names:
        return ""
    if len(names) == 1:
        is_none, it_is, it = f"{names[0]} is not a token", "it is", "it"
    else:
        is_none, it_is, it = f"{' and '.join(names)} are not tokens", "they are", "them"
    return (
        f"{is_none} of {vocabulary.name}: {it_is} spelled out, "
        f"and a message that spells {it} too looks the same"
    )


def _refuse_text(inputs: Sequence[InputFile]) -> None:
    for item in inputs:
        if item.kind is InputKind.TEXT:
            what = item.stream.name if item.stream else str(item.path)
            raise UsageError(
                f"examples are rows, and {what} is read as text",
                remedy="pass .jsonl, .parquet or .arrow files, or a folder of `datasets.save_to_disk`; "
                "leave `--examples` out for text",
            )
