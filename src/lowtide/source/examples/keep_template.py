"""The template of a dataset as its model keeps it: `chat_template.jinja`, complete in itself.

The special tokens that it was given by name stand in front of it, so that no other file decides what they are.
A built-in one also gets a prompt for the answer (`add_generation_prompt`), which its examples have no use for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from lowtide.source.examples.built_in import CHATML, PLAIN, PLAIN_COMPLETION
from lowtide.source.examples.render_protocol import TOKEN_NAMES

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


def keep_template(source: str, *, tokens: Mapping[str, str], end_of_text: str | None) -> str:
    """The template with what it was given: `tokens` by name, or for a built-in one the end of text."""
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
