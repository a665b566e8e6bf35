"""An environment for Jinja templates that reads nothing, ends, and makes nothing huge.

Jinja's immutable sandbox keeps a template away from Python's inside. What it lacks is added here: every round
of a loop is counted (a pass over the syntax tree puts the counting in), every call of a macro too, work on
long strings counts by their length, and whatever could grow a string or a number is measured before it is
made. Counted, not timed: the same row always fares the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, GeneratorType
from typing import NoReturn, cast

import jinja2
import jinja2.ext
import jinja2.utils
from jinja2 import nodes, parser, runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lowtide.source.examples.counted_tree import (
    CONTAINS,
    JOIN,
    SHOWN,
    SIZED,
    STEP,
    WEIGHED,
    CountingPass,
    refuse,
)
from lowtide.source.examples.marks import LEARNT_CLOSE, LEARNT_OPEN
from lowtide.source.examples.metering import (
    GROWTH,
    LONGEST_TEXT,
    Meter,
    TooMuchError,
    check_braces,
    check_percent,
    check_power,
    check_product,
)
from lowtide.units import format_count

_CALL_EFFORT = 4
_SHORT_TEXT = 256
_VALUES = (str, bytes, list, tuple, dict, int, float, runtime.LoopContext)
_ITERATORS = (GeneratorType, type(reversed([""])))
_BY_LENGTH = frozenset(
    {"attr", "count", "d", "default", "first", "items", "last", "length", "list", "reverse"}
    | {"map", "reject", "rejectattr", "select", "selectattr"}
)
"""Filters that do not look into what a list holds."""
_BY_ITEM = frozenset(
    {"batch", "dictsort", "groupby", "join", "map", "max", "min", "reject", "rejectattr", "select"}
    | {"selectattr", "slice", "sort", "sum", "title", "unique", "urlencode", "wordcount", "xmlattr"}
)
"""Filters that take a round of Python for every item, letter or word."""
_COMPARING_TESTS = frozenset(
    {"!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le"}
    | {"lessthan", "lower", "lt", "ne", "upper"}
)
_LETTER_BY_LETTER = frozenset({"expandtabs", "translate"})
_STRIPPING = frozenset({"lstrip", "rstrip", "strip", "trim"})
_LEFT_OUT_FILTERS = (
    "random",  # it would give other tokens every time
    *("pprint", "striptags", "urlize", "wordwrap"),  # for pages, and slow without a bound
)
_LEFT_OUT_GLOBALS = ("lipsum",)


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

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        self.meter = Meter()
        self.marks_learnt = False
        self.concat = self._concat  # type: ignore[method-assign]
        self._replace_filters()
        for name in _COMPARING_TESTS:
            self.tests[name] = self._metered_test(cast("Callable[..., object]", self.tests[name]))
        for name in _LEFT_OUT_GLOBALS:
            del self.globals[name]
        self.globals["raise_exception"] = _raise_exception
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _make_dict
        self.globals["range"] = self._range

    def parse_counted(self, source: str) -> nodes.Template:
        """The syntax tree of a template with the counting put in; `RefusedNodeError`: what is not allowed."""
        tree = self.parse(source)
        for node in tree.find_all(nodes.Node):
            refuse(node)
        CountingPass().visit(tree)
        tree.set_environment(self)
        return tree

    def call_binop(
        self,
        context: runtime.Context,  # noqa: ARG002
        operator: str,
        left: object,
        right: object,
    ) -> object:
        """The operators that can make much out of little, measured first."""
        if type(left) is str and type(right) is str and operator == "+":
            length = len(left) + len(right)
            if length < 1024:  # nearly every sum of a template
                return left + right
            self.meter.foresee(length)
        elif operator == "**":
            check_power(left, right)
        elif operator == "*":
            check_product(self.meter, left, right)
        elif operator == "%":
            check_percent(self.meter, left, right)
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            self.meter.foresee(len(left) + len(right))
        return self.meter.sized(self.binop_table[operator](left, right))

    def call(
        __self,  # noqa: N805 - a template's keyword arguments may have any name
        __context: runtime.Context,
        __function: object,
        *args: object,
        **kwargs: object,
    ) -> object:
        __self.meter.spend(_CALL_EFFORT)
        values = (*args, *kwargs.values())
        if isinstance(__function, FunctionType):
            known = getattr(__function, "__wrapped__", None)  # the sandbox's own str.format
            if known is not None:
                check_braces(__self.meter, getattr(known, "__self__", ""), values)
        elif isinstance(owner := getattr(__function, "__self__", None), _VALUES):
            __self._charge_method(getattr(__function, "__name__", ""), owner, values)
        return __self.meter.sized(super().call(__context, __function, *args, **kwargs))

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Jinja's own way prints an empty text; here it is an error at once."""
        raise jinja2.exceptions.SecurityError(
            f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe"
        )

    def _replace_filters(self) -> None:
        meter = self.meter
        for name in _LEFT_OUT_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = self._to_json
        for name, function in list(self.filters.items()):
            self.filters[name] = self._metered(name, function)
        self.filters[STEP] = self._step
        self.filters[JOIN] = self._join
        self.filters[CONTAINS] = self._contains
        self.filters[WEIGHED] = _at_run_time(meter.weighed)
        self.filters[SHOWN] = _at_run_time(meter.shown)
        self.filters[SIZED] = _at_run_time(meter.sized)

    def _metered(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        offset = 1 if hasattr(function, "jinja_pass_arg") else 0

        def metered(*args: object, **kwargs: object) -> object:
            self._charge_filter(name, (*args[offset:], *kwargs.values()))
            made = function(*args, **kwargs)
            return self.meter.sized(list(made) if isinstance(made, _ITERATORS) else made)

        for attribute in ("jinja_pass_arg", "jinja_async_variant"):
            if hasattr(function, attribute):
                setattr(metered, attribute, getattr(function, attribute))
        return metered

    def _charge_filter(self, name: str, values: tuple[object, ...]) -> None:
        """Pay for a filter with these arguments, the filtered value first."""
        meter, value = self.meter, values[0]
        meter.spend(1)
        if isinstance(value, runtime.LoopContext):
            meter.spend(value.length)
        elif isinstance(value, (str, list, tuple, dict)):
            meter.spend(len(value) if name in _BY_ITEM else len(value) >> 6)
        if name not in _BY_LENGTH:
            for each in values:
                meter.shown(each)
        if isinstance(value, str) and len(values) > 1:
            meter.searched(value, values[1], each=name in _STRIPPING)
        if name == "format":
            check_percent(meter, value, values[1:])
        elif name in GROWTH:
            GROWTH[name](meter, values)

    def _charge_method(self, name: str, owner: object, args: tuple[object, ...]) -> None:
        """Pay for a method of a text, a list or the like."""
        meter = self.meter
        if isinstance(owner, (str, bytes, list, tuple, dict)):
            meter.spend(len(owner) >> (3 if name in _LETTER_BY_LETTER else 8))
        for value in args:
            meter.weighed(value)
            if isinstance(owner, (str, bytes)) and isinstance(value, (str, bytes)):
                meter.searched(owner, value, each=name in _STRIPPING)
            if name in ("join", "fromkeys") and isinstance(value, (str, bytes, list, tuple)):
                meter.spend(len(value) >> 3)
        if name in ("count", "index", "changed"):
            meter.weighed(owner)
        if name in GROWTH:
            GROWTH[name](meter, (owner, *args))

    def _metered_test(self, function: Callable[..., object]) -> Callable[..., object]:
        def metered(value: object, *others: object) -> object:
            self.meter.spend(1)
            self._charge_comparison(value, others[0] if others else None)
            return function(value, *others)

        return metered

    @jinja2.pass_context
    def _step(self, context: runtime.Context, value: object) -> object:  # noqa: ARG002
        # pass_context also keeps the compiler from taking this call for a constant.
        self.meter.spend(1)
        return value

    @jinja2.pass_context
    def _contains(self, context: runtime.Context, value: object, other: object) -> bool:  # noqa: ARG002
        """What `in` does."""
        self._charge_comparison(value, other)
        return value in other  # type: ignore[operator]

    def _charge_comparison(self, value: object, other: object) -> None:
        meter = self.meter
        meter.weighed(value)
        if isinstance(other, str):
            meter.searched(other, value)
        elif isinstance(other, runtime.LoopContext):
            meter.spend(other.length)
        elif not isinstance(other, dict) or isinstance(value, dict):
            meter.weighed(other)

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        self.meter.spend(len(numbers))
        return numbers

    def _join(self, values: list[object]) -> str:
        """What `~` does."""
        return self._concat(str(self.meter.shown(value)) for value in values)

    def _concat(self, parts: Iterable[str]) -> str:
        pieces: list[str] = []
        length = 0
        for part in parts:
            pieces.append(part)
            length += len(part)
            if length > LONGEST_TEXT:
                raise TooMuchError(
                    f"makes a text of more than {format_count(LONGEST_TEXT)} characters"
                )
        self.meter.spend(length >> 9)
        return "".join(pieces)

    def _to_json(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As transformers has it: Jinja's own would escape characters of HTML."""
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        if indent is None:
            return encoder.encode(value)
        return self._concat(encoder.iterencode(value))  # how deep it is decides how long it gets


def _at_run_time(function: Callable[[object], object]) -> Callable[..., object]:
    """The function as a filter that the compiler does not take for a constant."""

    @jinja2.pass_context
    def at_run_time(context: runtime.Context, value: object) -> object:  # noqa: ARG001
        if type(value) is str and len(value) < _SHORT_TEXT:
            return value
        return function(value)

    return at_run_time


def _make_dict(*args: Mapping[str, object], **kwargs: object) -> dict[str, object]:
    """What a template calls `dict`: the type itself would offer more than making one."""
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)
