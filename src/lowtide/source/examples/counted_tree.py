"""A pass over a template's syntax tree that puts the counting in, wherever the template could work for long."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from lowtide.source.examples.marks import reserved_in

STEP, JOIN, CONTAINS = "lowtide_step", "lowtide_join", "lowtide_contains"
WEIGHED, SHOWN, SIZED = "lowtide_weighed", "lowtide_shown", "lowtide_sized"
"""Filters that a template cannot be told to leave out; the sandbox says what they do."""

_SHORT_TEXT = 256
_MOST_ITEMS = 16


class RefusedNodeError(Exception):
    """Something in a template that is not allowed, found before it runs."""


class CountingPass(NodeTransformer):
    """Counts rounds of loops, and has comparisons, slices, keys and output measured."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - as jinja2 names them
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_step(node.lineno), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_step(node.lineno), node.test)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        joined = nodes.List(node.nodes, lineno=node.lineno)
        node.nodes = [_filtered(joined, JOIN)]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        first = node.ops[0]
        if len(node.ops) == 1 and (_is_short(first.expr) or _is_short(node.expr, first.op)):
            return node  # soon done, however long the other side is
        if len(node.ops) == 1 and first.op in ("in", "notin"):
            found = _filtered(node.expr, CONTAINS, first.expr)
            return found if first.op == "in" else nodes.Not(found, lineno=node.lineno)
        node.expr = _measured(node.expr)
        for operand in node.ops:
            operand.expr = _measured(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _filtered(node, SIZED)
        node.arg = _measured(node.arg)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _measured(node.key)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [item if _is_text(item) else _filtered(item, SHOWN) for item in node.nodes]
        return node


def refuse(node: nodes.Node) -> None:
    """Refuse what reads another file, and names that only an attack would use."""
    if isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        kind = type(node).__name__.lower().replace("fromimport", "import")
        raise RefusedNodeError(f"line {node.lineno}: `{kind}` would read another file")
    if isinstance(node, nodes.Getattr) and node.attr.startswith("__"):
        raise RefusedNodeError(f"line {node.lineno}: access to {node.attr!r} is unsafe")
    text = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
    if isinstance(text, str) and (mark := reserved_in(text)):
        raise RefusedNodeError(f"line {node.lineno}: {mark} is a mark of lowtide's own")
    if isinstance(node, nodes.Filter) and node.name.startswith("lowtide_"):
        raise RefusedNodeError(f"line {node.lineno}: no filter named {node.name!r}")


def _step(line: int) -> nodes.Expr:
    return nodes.Filter(nodes.Const(True), STEP, [], [], None, None, lineno=line)


def _filtered(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Expr:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _measured(node: nodes.Expr) -> nodes.Expr:
    return node if _is_short(node) else _filtered(node, WEIGHED)


def _is_short(node: nodes.Node, operator: str = "eq") -> bool:
    """Whether it is written out in the template, in a few letters; of no use to the left of an `in`."""
    if operator in ("in", "notin"):
        return False
    if isinstance(node, nodes.Const):
        return not isinstance(node.value, str) or len(node.value) < _SHORT_TEXT
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return len(node.items) <= _MOST_ITEMS and all(map(_is_short, node.items))
    return False


def _is_text(node: nodes.Node) -> bool:
    """Whether it is surely a string, so that showing it makes nothing of it."""
    if isinstance(node, nodes.Add):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, nodes.Const):
        return isinstance(node.value, str)
    return isinstance(node, (nodes.TemplateData, nodes.Concat))
