"""An environment for Jinja templates: transformers' one, less what reads files or gives other text every time.

Jinja's immutable sandbox keeps a template away from Python's inside. How much memory and time a template takes
is no matter here: the process that it runs in has limits (`render_child.py`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.utils
from jinja2 import nodes, parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lowtide.source.examples.marks import LEARNT_CLOSE, LEARNT_OPEN, reserved_in

_LAZY_FILTERS = (
    *("batch", "items", "map", "reject", "rejectattr", "reverse"),
    *("select", "selectattr", "slice", "unique"),
)


class RefusedNodeError(Exception):
    """Something in a template that is not allowed, found before it runs."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` as transformers has it: what stands inside is learnt."""

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
    """A namespace that keeps no private names, as transformers has it."""

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

    def parse_checked(self, source: str) -> nodes.Template:
        """The syntax tree of a template; `RefusedNodeError`: what is not allowed."""
        tree = self.parse(source)
        for node in tree.find_all(nodes.Node):
            _refuse(node)
        return tree

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Jinja's own way prints an empty text; here it is an error at once."""
        raise jinja2.exceptions.SecurityError(
            f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe"
        )


def _refuse(node: nodes.Node) -> None:
    """Refuse what reads another file, and names that only an attack would use."""
    if isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        kind = type(node).__name__.lower().replace("fromimport", "import")
        raise RefusedNodeError(f"would read another file: `{kind}` in line {node.lineno}")
    if isinstance(node, nodes.Getattr) and node.attr.startswith("__"):
        raise RefusedNodeError(f"asks for {node.attr!r} in line {node.lineno}, which is unsafe")
    text = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
    if isinstance(text, str) and (mark := reserved_in(text)):
        raise RefusedNodeError(f"holds {mark} in line {node.lineno}, a mark of lowtide's own")


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
    """As transformers has it: Jinja's own would escape characters of HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _make_dict(*args: Mapping[str, object], **kwargs: object) -> dict[str, object]:
    """What a template calls `dict`: the type itself would offer more than making one."""
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)
