"""Bugs in loops: how often they turn, over what, and when they end."""

from collections.abc import Iterator

import libcst as cst

from harness.pool.builder.bugs.base import Change, Place, in_parentheses, register_bug


@register_bug("loops", cst.For, cst.While)
def loop_once(node: cst.For | cst.While, place: Place) -> Iterator[Change]:
    """for a in b: c -> for a in b: c; break"""
    if isinstance(node.body, cst.IndentedBlock):
        last = cst.SimpleStatementLine([cst.Break()])
        yield node.with_changes(body=node.body.with_changes(body=[*node.body.body, last]))


@register_bug("loops", cst.For)
def loop_drop(node: cst.For, place: Place) -> Iterator[Change]:
    """for a in b: c -> nothing"""
    yield cst.RemoveFromParent()


@register_bug("loops", cst.Break, cst.Continue)
def loop_exit(node: cst.Break | cst.Continue, place: Place) -> Iterator[Change]:
    """break -> continue, and back"""
    yield cst.Continue() if isinstance(node, cst.Break) else cst.Break()
    yield cst.Pass()


@register_bug("loops", cst.For, cst.CompFor)
def loop_source(node: cst.For | cst.CompFor, place: Place) -> Iterator[Change]:
    """for a in b -> for a in list(b)[1:], for a in list(b)[:-1]"""
    iterated = node.iter
    if isinstance(iterated, cst.Call) and isinstance(iterated.func, cst.Name) and iterated.func.value == "range":
        *before, bound = iterated.args
        if bound.star or bound.keyword or len(iterated.args) > 2:
            return
        minus = cst.Subtract(cst.SimpleWhitespace(" "), cst.SimpleWhitespace(" "))
        less = cst.BinaryOperation(in_parentheses(bound.value), minus, cst.Integer("1"))
        yield node.with_changes(iter=iterated.with_changes(args=[*before, bound.with_changes(value=less)]))
        if not before:
            one = cst.Arg(cst.Integer("1"), comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
            yield node.with_changes(iter=iterated.with_changes(args=[one, bound]))
        return
    whole = cst.Call(cst.Name("list"), [cst.Arg(iterated.with_changes(lpar=[], rpar=[]))])
    if isinstance(iterated, cst.Tuple | cst.GeneratorExp):
        return
    yield node.with_changes(iter=_slice(whole, cst.Slice(cst.Integer("1"), None)))


def _slice(value: cst.BaseExpression, part: cst.Slice) -> cst.Subscript:
    return cst.Subscript(value, [cst.SubscriptElement(part)])
