"""What the tests of examples share: templates, hostile texts, files, and a plain rendering by jinja2."""

from __future__ import annotations

import functools
import json
import re
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lowtide.settings import ExampleKind, Learn, SpecialInText
from lowtide.source.blocks import Block, ReadSettings
from lowtide.source.examples.marks import LEARNT_CLOSE, LEARNT_OPEN, assign_marks
from lowtide.source.examples.render_protocol import RenderLimits
from lowtide.source.examples.settings import ExampleReading
from lowtide.source.examples.templates import Template, load_template
from lowtide.source.examples.token_names import TokenNames
from lowtide.source.find_inputs import find_inputs
from lowtide.source.stream import read_blocks
from tests.source.readings import MARK, START, reading

END_OF_TEXT = "<|endoftext|>"
SPECIAL = {
    END_OF_TEXT: 7,
    "<s>": 8,
    "</s>": 9,
    "<|im_start|>": 3,
    "<|im_end|>": 4,
    "[INST]": 5,
    "[/INST]": 6,
}
Message = dict[str, object]
_OPEN: weakref.WeakSet[Template] = weakref.WeakSet()

WITH_BLOCKS = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{%- if system_message %}
    {{- "<|im_start|>system\\n\\n" + system_message + "<|im_end|>" }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
        {{- message['content'] | trim + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] | trim ~ '<|im_end|>' }}
    {%- endif %}
    {%- if loop.last and add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}
{%- endfor %}
"""
"""In the style of Llama 3, with generation blocks."""

WITHOUT_BLOCKS = """\
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}
{% for message in loop_messages %}
{% if loop.index0 == 0 and system_message %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ ' ' + content | trim + ' ' + eos_token }}
{% else %}{{ '<<' + message['role'] + '>> ' + content }}{% endif %}
{% endfor %}
"""
"""In the style of Llama 2: contents are trimmed, and nothing says what the assistant wrote."""

UNTRIMMED = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{% endfor %}"""
"""In the style of many ChatML templates, without generation blocks."""

HOSTILE = [
    *("<|im_start|>", "<|im_end|>", "<|im_end", "assistant\n", "<s>", "</s>", "[INST]", "[/INST]"),
    *(END_OF_TEXT, "{{ messages }}", "{% raw %}", "{% endgeneration %}", "{#", "\x00", "\r\n"),
    *("<|endof", "text|>", "<|im_", "start|>", "<|", "[/IN", "ST]", "NST", "im_end", "s>", "</"),
    *("😀", "e\u0301", "\u200d", "中文", "\ufeff", "\u2028", "\x85", " ", "\n", "\t", "<", "|>"),
    *("1", "a b", "User: ", "\n\nAssistant: ", "\\", '"', "%", "\x1c", "\r", "\ufdcf", "\ufdda"),
]
_OURS = re.compile("[\ufdd0-\ufdd9\ue000-\ue07f\x02\x03]")
"""What is reserved, and the letters that the tests themselves use for keys."""
CONTENTS = (
    st.lists(st.sampled_from(HOSTILE) | st.text(max_size=3), max_size=6)
    .map("".join)
    .filter(lambda text: not _OURS.search(text))
)


@st.composite
def chats(draw: st.DrawFn) -> list[Message]:
    """Conversations that every template here takes, with an answer somewhere."""
    messages: list[Message] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(CONTENTS)})
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(CONTENTS)})
        messages.append({"role": "assistant", "content": draw(CONTENTS)})
    if draw(st.booleans()):
        messages.append({"role": "user", "content": draw(CONTENTS)})
    return messages


class _Blocks(Extension):
    """Generation blocks in marks, as plainly as can be."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: jinja2.runtime.Macro) -> str:
        return LEARNT_OPEN + caller() + LEARNT_CLOSE


def render(source: str, messages: Sequence[Message]) -> str:
    """The row through jinja2 alone; generation blocks stand in marks."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Blocks, loopcontrols]
    )
    return environment.from_string(source).render(
        messages=messages,
        bos_token="<s>",
        eos_token=END_OF_TEXT,
        add_generation_prompt=False,
        tools=None,
        documents=None,
    )


def template_at(
    path: Path | str | None,
    kind: ExampleKind = "chat",
    *,
    special: Mapping[str, int] = SPECIAL,
    in_text: SpecialInText = "text",
    limits: RenderLimits | None = None,
) -> Template:
    """A template with this module's special tokens. It is closed when the test ends."""
    template = load_template(
        None if path is None else str(path),
        kind,
        special_tokens=special,
        end_of_text=END_OF_TEXT,
        names=TokenNames(tokens={"bos_token": "<s>", "eos_token": END_OF_TEXT}, is_complete=False),
        special_in_text=in_text,
        limits=limits,
    )
    _OPEN.add(template)
    return template


def close_templates() -> None:
    """End the processes of all templates from here; one that is used again gets a new one."""
    for template in list(_OPEN):
        template.close()


@functools.cache
def template_of(source: str) -> Template:
    """The same of a Jinja text, with one process for all of a test that ask."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.jinja")
        path.write_text(source, newline="")
        return template_at(path)


def example_settings(
    template: Template, learn: Learn = "assistant", kind: ExampleKind = "chat", **changes: object
) -> ReadSettings:
    """Settings that read examples; `columns` among the changes goes to the examples."""
    columns = changes.pop("columns", {})
    examples = ExampleReading(kind=kind, template=template, learn=learn, columns=columns)  # type: ignore[arg-type]
    return reading(examples=examples, **changes)


def write_chats(path: Path, conversations: Sequence[object], column: str = "messages") -> Path:
    """The rows in the format that the path's name asks for."""
    if path.suffix == ".jsonl":
        lines = [json.dumps({"id": 1, column: chat}) + "\n" for chat in conversations]
        path.write_text("".join(lines))
        return path
    write_table(path, pa.table({"id": list(range(len(conversations))), column: conversations}))
    return path


def write_table(path: Path, table: pa.Table, *, group_rows: int = 3) -> Path:
    """A Parquet or Arrow stream file."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group_rows)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=group_rows)
    return path


def read_blocks_of(path: Path, settings: ReadSettings) -> list[Block]:
    """All blocks of one file."""
    return list(read_blocks(find_inputs([str(path)]), settings, start=START))


def marked(blocks: Sequence[Block]) -> list[str]:
    """The examples of blocks, with the learnt parts in LEARNT marks."""
    documents: list[str] = []
    for block in blocks:
        assert (np.diff(block.learnt.ravel()) > 0).all()
        text, before = b"", 0
        for begin, end in block.learnt.tolist():
            text += block.text[before:begin] + LEARNT_OPEN.encode()
            text += block.text[begin:end] + LEARNT_CLOSE.encode()
            before = end
        text += block.text[before:]
        assert text.endswith(MARK) or not text
        documents += text.decode().split(MARK.decode())[:-1]
    return documents


def unmarked(text: str, special: Mapping[str, int] = SPECIAL) -> str:
    """Text with special tokens' marks as their names, and without learnt marks."""
    for name, mark in assign_marks(special).items():
        text = text.replace(mark, name)
    return text.replace(LEARNT_OPEN, "").replace(LEARNT_CLOSE, "")
