"""Bugs in what classes and functions consist of: members, bases, decorators, defaults."""

from collections.abc import Iterator

import libcst as cst

from harness.pool.builder.bugs.base import Change, Place, register_bug

_KEPT_MEMBERS = {"__init__", "__new__", "__slots__", "__doc__", "__all__"}


@register_bug("class members", cst.FunctionDef, in_class=True)
def member_drop(node: cst.FunctionDef, place: Place) -> Iterator[Change]:
    """A method of a class is gone."""
    if place.inside(cst.ClassDef) and not place.in_function and node.name.value not in _KEPT_MEMBERS:
        yield cst.RemoveFromParent()


@register_bug("class members", cst.Assign, in_class=True)
def attribute_drop(node: cst.Assign, place: Place) -> Iterator[Change]:
    """__radd__ = __add__ -> nothing, in the body of a class"""
    target = node.targets[0].target
    of_class = place.inside(cst.ClassDef) and not place.in_function
    if of_class and isinstance(target, cst.Name) and target.value not in _KEPT_MEMBERS:
        yield cst.Pass()


@register_bug("class members", cst.ClassDef, in_class=True)
def base_drop(node: cst.ClassDef, place: Place) -> Iterator[Change]:
    """class A(B, C): -> class A(C):"""
    for number in range(len(node.bases)):
        kept = [base for other, base in enumerate(node.bases) if other != number]
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        yield node.with_changes(bases=kept)


@register_bug("wrappers", cst.FunctionDef, in_class=True)
def decorator_drop(node: cst.FunctionDef, place: Place) -> Iterator[Change]:
    """@a def b -> def b"""
    for number in range(len(node.decorators)):
        yield node.with_changes(decorators=[d for other, d in enumerate(node.decorators) if other != number])


@register_bug("wrappers", cst.With)
def with_drop(node: cst.With, place: Place) -> Iterator[Change]:
    """with a: b -> b"""
    if isinstance(node.body, cst.IndentedBlock) and all(item.asname is None for item in node.items):
        yield cst.FlattenSentinel(node.body.body)


@register_bug("arguments", cst.Param, in_class=True)
def default_change(node: cst.Param, place: Place) -> Iterator[Change]:
    """def f(a=True) -> def f(a=False)"""
    default = node.default
    if isinstance(default, cst.Name) and default.value in ("True", "False"):
        yield node.with_changes(default=cst.Name("False" if default.value == "True" else "True"))
    elif isinstance(default, cst.Integer) and default.value.isdigit():
        yield node.with_changes(default=cst.Integer(str(default.evaluated_value + 1)))
    elif isinstance(default, cst.SimpleString) and default.quote in ("'", '"') and default.raw_value:
        yield node.with_changes(default=default.with_changes(value=f"{default.prefix}{default.quote * 2}"))
