"""A template in Hugging Face's convention, compiled once; runs in the child process (`render_child.py`).

Its environment is transformers' one, less what reads files or gives other text every time. Jinja's immutable
sandbox keeps a template away from Python's internals. How much memory and time a template takes is not counted
here: the process it runs in has limits.

What is learnt: its `{% generation %}` blocks. In a template without any, the assistant's contents are wrapped
in marks and found again in the text, together with a special token directly behind. The text must be the
same as without marks, or it is an error: a template that looks into contents has to say itself what is
learnt.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn, TypeAlias, cast

import jinja2
import jinja2.ext
import jinja2.utils
from jinja2 import meta, nodes, parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lowtide.settings import Learn
from lowtide.source.examples.marks import (
    LEARNT_CLOSE,
    LEARNT_OPEN,
    SpecialNames,
    reserved_in,
)
from lowtide.source.examples.render_protocol import TOKEN_NAMES, Messages, Rendered, Setup
from lowtide.source.examples.turns import BadExampleError, gather, rebuilt
from lowtide.units import printable

_LAZY_FILTERS = (
    *("batch", "items", "map", "reject", "rejectattr", "reverse"),
    *("select", "selectattr", "slice", "unique"),
)

Places: TypeAlias = list[tuple[int, int]]
_Compiled: TypeAlias = tuple[jinja2.Template, bool, bool, set[str]]

_LEARNT_MARK = re.compile(f"[{LEARNT_OPEN}{LEARNT_CLOSE}]")
_BUFFERED = (
    *(nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock),
    *(nodes.Block, nodes.For),  # of loops the recursive ones, which give their text back
)
_TEMPLATES_FAULT = (
    jinja2.exceptions.SecurityError,
    jinja2.exceptions.TemplateNotFound,
    RecursionError,
    OverflowError,
)
_ADD_BLOCKS = (
    "put `{% generation %}` and `{% endgeneration %}` around what the assistant writes in the template, "
    "or set `learn` to `all`"
)


class RefusedTemplateError(Exception):
    """The template is at fault: it cannot be compiled, or every other row would fail as well."""

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class JinjaRenderer:
    """Renders the messages of a row."""

    def __init__(self, setup: Setup) -> None:
        self._name = setup.name
        self._names = SpecialNames(setup.special_tokens, setup.special_in_text)
        self._environment = TemplateEnvironment()
        compiled = _compile(self._environment, setup.source)
        self._template, self._has_blocks, self._is_buffered, asked_for = compiled
        self.used = sorted(asked_for & (TOKEN_NAMES | setup.variables.keys()))
        self._variables = {
            "add_generation_prompt": setup.add_generation_prompt,
            "tools": None,
            "documents": None,
            **setup.variables,
        }

    def render(self, messages: Messages, learn: Learn) -> Rendered:
        """The text of an example, in parts of which some are in the loss mask."""
        hidden = self._without_names(messages)
        text, places = self._render_learnt(hidden, learn)
        is_changed = hidden is not messages
        if is_changed and self._names.show(text) != self._run(messages):
            raise BadExampleError(
                "the template looks at the name of a special token that a content holds; "
                "`special-in-text` set to `token` would take it for the token"
            )
        places = self._around_names(text, places, end_too=not self._has_blocks)
        rendered = Rendered(parts=[], learnt=[])
        for part, is_learnt in _parts(text, places):
            if is_learnt:
                rendered.learnt.append(len(rendered.parts))
            part = self._names.to_marks(part)
            rendered.parts.append(_encoded(self._names.show(part) if is_changed else part))
        return rendered

    def _without_names(self, messages: Messages) -> Messages:
        """The messages with names, and parts of names at a content's ends, hidden; the same where none are."""
        names, found = self._names, list[object]()
        gather(messages, found)
        texts = [text for text in found if type(text) is str]
        if not names.is_harmless(texts):
            for text in texts:
                names.check(text)
            if names.policy == "text" and any(map(names.occur_in, texts)):
                messages = cast("Messages", rebuilt(messages, self._hide))
        contents = [cast("str", message["content"]) for message in messages]
        if not any(map(names.can_be_completed, contents)):
            return messages
        hidden = map(names.hide_ends, contents)
        return [
            {**message, "content": content}
            for message, content in zip(messages, hidden, strict=True)
        ]

    def _hide(self, value: object) -> object:
        return self._names.hide(value) if isinstance(value, str) else value

    def _render_learnt(self, messages: Messages, learn: Learn) -> tuple[str, Places]:
        """The text, and which of its characters are in the loss mask."""
        if learn == "all":
            return self._run(messages), []
        if not self._has_blocks:
            return self._render_wrapped(messages, learn)
        marked = self._run(messages, marks_learnt=True)
        text, places = _take_marks(marked)
        if not _is_nested(marked) or (self._is_buffered and text != self._run(messages)):
            raise RefusedTemplateError(
                "works on the text of a generation block after the block",
                remedy="write the blocks out directly, not through a macro, a `set` or a `filter`",
            )
        if learn == "completion":
            places = places[self._blocks_before_last(messages) :]
        return text, places

    def _blocks_before_last(self, messages: Messages) -> int:
        """The number of blocks before those of the last answer: as many as there are without it."""
        answers = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
        if len(answers) < 2:
            return 0
        before = self._run(messages[: answers[-1]], marks_learnt=True)
        return len(_take_marks(before)[1])

    def _render_wrapped(self, messages: Messages, learn: Learn) -> tuple[str, Places]:
        """`_render_learnt` for a template without generation blocks: contents are marked, and found again."""
        plain_text = self._run(messages)
        for wrapped in _wrappings(messages, only_last=learn == "completion"):
            marked = self._run(wrapped)
            if _LEARNT_MARK.sub("", marked) == plain_text and _is_paired(marked):
                return _take_marks(marked)
        raise RefusedTemplateError(
            "changes the assistant's text or acts on it, so the part for the loss mask cannot be found",
            remedy=_ADD_BLOCKS,
        )

    def _around_names(self, text: str, places: Places, *, end_too: bool) -> Places:
        """Places moved so that they cut no special token; with `end_too` they include the next one."""
        names = self._names.places(text)
        begins = [begin for begin, _ in names]
        moved: Places = []
        for begin, end in places:
            number = bisect_right(begins, begin) - 1
            if begin < end and number >= 0 and begin < names[number][1]:
                begin = names[number][0]
            number = bisect_right(begins, end if end_too else end - 1) - 1
            if (
                number >= 0
                and (begin < end or end_too)
                and names[number][1] > end >= names[number][0]
            ):
                end = names[number][1]
            if moved and begin <= moved[-1][1]:
                moved[-1] = (moved[-1][0], max(end, moved[-1][1]))
            elif begin < end:
                moved.append((begin, end))
        return moved

    def _run(self, messages: Messages, *, marks_learnt: bool = False) -> str:
        """One rendering: `RefusedTemplateError` if the template is at fault, `BadExampleError` if the row."""
        environment = self._environment
        environment.marks_learnt = marks_learnt
        context = self._template.new_context({"messages": messages, **self._variables})
        try:
            return environment.concat(self._template.root_render_func(context))
        except MemoryError:
            raise
        except _TEMPLATES_FAULT as error:
            raise RefusedTemplateError(
                _describe(error), remedy="fix the template, or choose another"
            ) from error
        except jinja2.exceptions.UndefinedError as error:
            if "strftime_now" in str(error):
                raise RefusedTemplateError(
                    "asks for today's date, which would give different tokens every day",
                    remedy="write a date into the template in place of `strftime_now`",
                ) from error
            raise self._bad(error) from error
        except Exception as error:  # a filter may raise anything
            raise self._bad(error) from error

    def _bad(self, error: Exception) -> BadExampleError:
        return BadExampleError(f"template {self._name} says: {printable(str(error))[:200]}")


def _encoded(part: str) -> bytes:
    try:
        return part.encode()
    except UnicodeEncodeError as error:
        raise RefusedTemplateError("writes half a character", remedy="fix the template") from error


def _compile(environment: TemplateEnvironment, source: str) -> _Compiled:
    """The template, whether it has generation blocks, and whether their text may be worked on afterwards,
    and the variables that it asks for."""
    try:
        tree = environment.parse(source)
        for node in tree.find_all(nodes.Node):
            _refuse(node)
        blocks = [node for node in tree.find_all(nodes.CallBlock) if _is_generation(node)]
        buffered = [
            inner
            for outer in tree.find_all(_BUFFERED)
            if not isinstance(outer, nodes.For) or outer.recursive
            for inner in outer.find_all(nodes.CallBlock)
            if _is_generation(inner)
        ]
        asked_for = meta.find_undeclared_variables(tree)
        code = environment.compile(tree, filename="<template>")
        template = jinja2.Template.from_code(environment, code, environment.globals)
    except jinja2.exceptions.TemplateSyntaxError as error:
        raise RefusedTemplateError(
            f"has an error in line {error.lineno}: {printable(str(error.message))}",
            remedy="fix the template; it is read as Hugging Face's chat templates are",
        ) from error
    except (RecursionError, SyntaxError, ValueError) as error:
        raise RefusedTemplateError(
            f"cannot be compiled: {_describe(error)}",
            remedy="write it more simply; a chat template takes a page",
        ) from error
    return template, bool(blocks), bool(buffered), asked_for


def _refuse(node: nodes.Node) -> None:
    """Refuse what reads another file, and text that holds a mark of lowtide's own."""
    problem = ""
    if isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        kind = type(node).__name__.lower().replace("fromimport", "import")
        problem = f"would read another file: `{kind}` in line {node.lineno}"
    text = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
    if isinstance(text, str) and (mark := reserved_in(text)):
        problem = f"holds {mark} in line {node.lineno}, a mark of lowtide's own"
    if problem:
        raise RefusedTemplateError(problem, remedy="write it without that, in one file")


def _is_generation(node: nodes.CallBlock) -> bool:
    called = node.call.node
    return isinstance(called, nodes.ExtensionAttribute) and called.name == "_mark"


def _describe(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "does not end: it calls itself too deeply"
    return printable(str(error))[:200]


def _wrappings(messages: Messages, *, only_last: bool) -> Iterator[Messages]:
    """The messages with the assistant's contents in marks, in every way that a `trim` could call for.

    White space at the ends of a content stays inside the marks if the template keeps it, and outside if
    not; a content with nothing else may have to stay unmarked, for a template that asks if there is any.
    """
    numbers = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    numbers = numbers[-1:] if only_last else numbers
    contents = [cast("str", messages[i]["content"]) for i in numbers]
    ends = any(content != content.strip() for content in contents)
    blanks = any(not content.strip() for content in contents)
    sides = ((False, False), (True, True), (True, False), (False, True))
    for marks_blanks, (left, right) in itertools.product(
        (True, False) if blanks else (True,), sides if ends else sides[:1]
    ):
        wrapped = list(messages)
        for number, content in zip(numbers, contents, strict=True):
            if marks_blanks or content.strip():
                wrapped[number] = {**messages[number], "content": _wrap(content, left, right)}
        yield wrapped


def _wrap(content: str, left_outside: bool, right_outside: bool) -> str:
    begin = len(content) - len(content.lstrip()) if left_outside else 0
    end = max(begin, len(content.rstrip())) if right_outside else len(content)
    return f"{content[:begin]}{LEARNT_OPEN}{content[begin:end]}{LEARNT_CLOSE}{content[end:]}"


def _is_nested(text: str) -> bool:
    """Whether marks open before they close, and all of them close."""
    depth = 0
    for found in _LEARNT_MARK.finditer(text):
        depth += 1 if found.group() == LEARNT_OPEN else -1
        if depth < 0:
            return False
    return depth == 0


def _is_paired(text: str) -> bool:
    """Whether every opening mark is followed by its closing one."""
    marks = "".join(_LEARNT_MARK.findall(text))
    return marks == (LEARNT_OPEN + LEARNT_CLOSE) * (len(marks) // 2)


def _take_marks(text: str) -> tuple[str, Places]:
    """The text without marks, and the places between them. Blocks inside blocks are part of the outer one."""
    pieces: list[str] = []
    places: Places = []
    position = depth = begin = 0
    *closed, rest = text.split(LEARNT_CLOSE)  # several times as fast as a pattern
    for segment in closed:
        for number, piece in enumerate(segment.split(LEARNT_OPEN)):
            if number:
                begin = begin if depth else position
                depth += 1
            pieces.append(piece)
            position += len(piece)
        depth -= 1
        if depth == 0:
            places.append((begin, position))
    pieces.append(rest.replace(LEARNT_OPEN, ""))
    return "".join(pieces), places


def _parts(text: str, places: Places) -> Iterator[tuple[str, bool]]:
    """The text cut at the places' ends, and which parts are in the loss mask."""
    start = 0
    for begin, end in places:
        yield text[start:begin], False
        yield text[begin:end], True
        start = end
    yield text[start:], False


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` as transformers has it: its text is in the loss mask."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        text = caller()
        environment = self.environment
        assert isinstance(environment, TemplateEnvironment)
        return f"{LEARNT_OPEN}{text}{LEARNT_CLOSE}" if environment.marks_learnt else text


class _Namespace(jinja2.utils.Namespace):
    """A namespace that refuses private names, as transformers has it."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"{name!r} cannot be stored in a namespace")
        super().__setitem__(name, value)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox in which templates are compiled and run."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        self.marks_learnt = False
        del self.filters["random"], self.globals["lipsum"]  # other tokens every time
        for name in _LAZY_FILTERS:
            self.filters[name] = _at_once(self.filters[name])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _make_dict

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Jinja itself prints an empty text; here it is an error at once."""
        raise jinja2.exceptions.SecurityError(
            f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe"
        )


def _at_once(function: Callable[..., object]) -> Callable[..., object]:
    """The filter with a list for its result: an iterator's text would hold its address in memory."""

    @functools.wraps(function)  # which also keeps the marks that Jinja finds on a filter
    def at_once(*args: object, **kwargs: object) -> object:
        made = function(*args, **kwargs)
        return list(made) if isinstance(made, Iterator) else made

    return at_once


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: Jinja's own filter escapes characters of HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _make_dict(*args: Mapping[str, object], **kwargs: object) -> dict[str, object]:
    """Stands for `dict` in templates: the type itself offers more than making one."""
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)
