"""The registry of bugs: a kind of change to the syntax tree, and the nodes it can be made to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst

Change = cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[Any]
"""What takes a node's place: another, nothing, or several."""

Changer = Callable[[Any, "Place"], Iterator[Change]]


@dataclass(frozen=True)
class Place:
    """Where a node stands: its parents, the nearest last, and names of the classes and functions around it."""

    parents: tuple[cst.CSTNode, ...]
    names: tuple[str, ...]

    @property
    def parent(self) -> cst.CSTNode | None:
        return self.parents[-1] if self.parents else None

    @property
    def in_function(self) -> bool:
        return any(isinstance(parent, cst.FunctionDef) for parent in self.parents)

    def inside(self, *kinds: type[cst.CSTNode]) -> bool:
        return any(isinstance(parent, kinds) for parent in self.parents)


@dataclass(frozen=True)
class Bug:
    """A kind of bug. `change` yields every way to make it of a node of `nodes`; `family` groups kinds for people."""

    name: str
    family: str
    nodes: tuple[type[cst.CSTNode], ...]
    change: Changer
    in_class: bool = False  # also outside functions, in the body of a class


BUGS: dict[str, Bug] = {}
"""Kinds by name. `double` is none of them: it is two at once."""

DOUBLE = "double"


def register_bug(family: str, *nodes: type[cst.CSTNode], in_class: bool = False) -> Callable[[Changer], Changer]:
    """Make a generator of changes known by its name."""

    def register(change: Changer) -> Changer:
        name = change.__name__.strip("_")
        if name in BUGS or name == DOUBLE:
            raise ValueError(f"bug {name!r} is registered twice; choose another name")
        BUGS[name] = Bug(name, family, nodes, change, in_class)
        return change

    return register


def negated(test: cst.BaseExpression) -> cst.BaseExpression:
    """The opposite of a condition, without `not not`."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression
    simple = isinstance(test, cst.Name | cst.Call | cst.Attribute | cst.Subscript) or bool(getattr(test, "lpar", ()))
    inner = test if simple else test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(cst.Not(), inner)


def is_docstring(line: cst.CSTNode) -> bool:
    """Whether a statement is nothing but a string."""
    return (
        isinstance(line, cst.SimpleStatementLine)
        and len(line.body) == 1
        and isinstance(line.body[0], cst.Expr)
        and isinstance(line.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )


def in_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    """An expression that can stand anywhere another did."""
    atom = cst.Name | cst.Call | cst.Attribute | cst.Subscript | cst.Integer | cst.Float | cst.SimpleString | cst.List
    if isinstance(node, atom) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
