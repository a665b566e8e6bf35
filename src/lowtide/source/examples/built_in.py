"""The built-in templates: fast ones in plain Python, and the Jinja text that says the same.

A test holds the two equal. A dataset's manifest keeps the Jinja text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from lowtide.settings import ExampleKind, Learn
from lowtide.source.examples.marks import SpecialNames
from lowtide.source.examples.piece_builder import PieceBuilder
from lowtide.source.examples.turns import ROLE_NAMES, BadExampleError, Turn

CHATML = """\
{%- for message in messages -%}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}
        {{- raise_exception('unknown role ' + message.role) -}}
    {%- endif -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}{{- message.content + '<|im_end|>' -}}{%- endgeneration -%}
    {%- else -%}
        {{- message.content + '<|im_end|>' -}}
    {%- endif -%}
    {{- '\\n' -}}
{%- endfor -%}
"""

PLAIN = """\
{%- set titles = {'system': 'System', 'user': 'User', 'assistant': 'Assistant', 'tool': 'Tool'} -%}
{%- for message in messages -%}
    {%- if message.role not in titles -%}
        {{- raise_exception('unknown role ' + message.role) -}}
    {%- endif -%}
    {%- if not loop.first -%}{{- '\\n\\n' -}}{%- endif -%}
    {{- titles[message.role] + ': ' -}}
    {%- if message.role == 'assistant' -%}
        {%- generation -%}{{- message.content + eos_token -}}{%- endgeneration -%}
    {%- else -%}
        {{- message.content -}}
    {%- endif -%}
{%- endfor -%}
"""

PLAIN_COMPLETION = """\
{{- messages[0].content -}}
{%- generation -%}{{- messages[1].content + eos_token -}}{%- endgeneration -%}
"""

_ROLES = ("system", "user", "assistant", "tool")
_ASSISTANT = frozenset(
    {"assistant"} | {name for name, role in ROLE_NAMES.items() if role == "assistant"}
)


class BuiltInTemplate:
    """Text before and behind each content; behind an assistant's content it is in the loss mask too."""

    whole_messages = False
    tokens: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        name: str,
        source: str,
        names: SpecialNames,
        *,
        openings: Mapping[str, str],
        between: str = "",
        ending: str = "",
        learnt_ending: str,
        last: str = "",
    ) -> None:
        self.name = name
        self.source = source
        self.digest = hashlib.sha256(source.encode()).hexdigest()
        self._names = names
        self._first = _with_aliases(
            {role: names.to_marks(text).encode() for role, text in openings.items()}
        )
        self._later = _with_aliases(
            {role: names.to_marks(between + text).encode() for role, text in openings.items()}
        )
        self._ending = names.to_marks(ending).encode()
        self._learnt_ending = names.to_marks(learnt_ending).encode()
        self._last = names.to_marks(last).encode()

    def expect(self, examples: Sequence[list[Turn]]) -> None:
        """Does nothing: each example is rendered when it is asked for."""

    def close(self) -> None:
        """Does nothing: there is no process."""

    def render(self, turns: Sequence[Turn], learn: Learn, builder: PieceBuilder) -> None:
        """Append the text of an example, in parts of which some are in the loss mask."""
        parts, learnt, before = builder.parts, builder.learnt, len(builder.learnt)
        last = before  # where the last answer's part is noted, if it has one
        is_text = self._names.policy == "text"
        openings = self._first
        for turn in turns:
            role = turn.role
            if role not in openings:
                known = ", ".join(_ROLES)
                raise BadExampleError(
                    f"the role {role[:40]!r} is not known to template {self.name}: it knows {known}"
                )
            content = turn.content
            is_safe = is_text and content.isascii()  # nothing to check, and soon known
            body = content.encode() if is_safe else self._names.content_bytes(content)
            if role in _ASSISTANT:
                last = len(learnt)
                if body or self._learnt_ending:
                    learnt.append(len(parts) + 1)
                parts += (openings[role], body + self._learnt_ending)
            else:
                parts += (openings[role], body, self._ending)
            openings = self._later
        parts.append(self._last)
        if learn == "completion":
            del learnt[before:last]


def chatml(names: SpecialNames) -> BuiltInTemplate:
    """`<|im_start|>role`, a newline, the content, `<|im_end|>`, a newline."""
    return BuiltInTemplate(
        "chatml",
        CHATML,
        names,
        openings={role: f"<|im_start|>{role}\n" for role in _ROLES},
        between="\n",
        ending="<|im_end|>",
        learnt_ending="<|im_end|>",
        last="\n",
    )


def plain(names: SpecialNames, kind: ExampleKind, end_of_text: str | None) -> BuiltInTemplate:
    """`User: …`, a blank line, `Assistant: …` and the end of text; a completion has no titles."""
    if kind == "completion":
        return BuiltInTemplate(
            "plain",
            PLAIN_COMPLETION,
            names,
            openings={"user": "", "assistant": ""},
            learnt_ending=end_of_text or "",
        )
    return BuiltInTemplate(
        "plain",
        PLAIN,
        names,
        openings={role: f"{role.capitalize()}: " for role in _ROLES},
        between="\n\n",
        learnt_ending=end_of_text or "",
    )


def _with_aliases(openings: Mapping[str, bytes]) -> dict[str, bytes]:
    aliases = {name: openings[role] for name, role in ROLE_NAMES.items()}
    return {**openings, **aliases}
