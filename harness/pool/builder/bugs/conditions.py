"""Bugs in conditions and in which branch is taken."""

from collections.abc import Iterator

import libcst as cst

from harness.pool.builder.bugs.base import Change, Place, negated, register_bug


@register_bug("conditions", cst.If, cst.IfExp, cst.While, cst.CompIf)
def condition_invert(node: cst.If | cst.IfExp | cst.While | cst.CompIf, place: Place) -> Iterator[Change]:
    """if a: -> if not a:"""
    yield node.with_changes(test=negated(node.test))


@register_bug("conditions", cst.If)
def condition_drop(node: cst.If, place: Place) -> Iterator[Change]:
    """if a: b -> nothing, or b in any case"""
    if isinstance(place.parent, cst.If):
        return  # an elif cannot go by itself
    if node.orelse is None:
        yield cst.RemoveFromParent()
    if isinstance(node.body, cst.IndentedBlock) and not _leaves(node.body):
        yield cst.FlattenSentinel(node.body.body)


@register_bug("conditions", cst.CompIf)
def filter_drop(node: cst.CompIf, place: Place) -> Iterator[Change]:
    """[a for a in b if c] -> [a for a in b]"""
    yield cst.RemoveFromParent()


@register_bug("control flow", cst.If)
def branch_swap(node: cst.If, place: Place) -> Iterator[Change]:
    """if a: b else: c -> if a: c else: b"""
    if isinstance(node.orelse, cst.Else):
        yield node.with_changes(body=node.orelse.body, orelse=node.orelse.with_changes(body=node.body))


@register_bug("control flow", cst.If)
def branch_order(node: cst.If, place: Place) -> Iterator[Change]:
    """if a: b elif c: d -> if c: d elif a: b"""
    second = node.orelse
    if isinstance(second, cst.If):
        moved = second.with_changes(test=node.test, body=node.body)
        yield node.with_changes(test=second.test, body=second.body, orelse=moved)


@register_bug("control flow", cst.If)
def branch_drop(node: cst.If, place: Place) -> Iterator[Change]:
    """if a: b else: c -> if a: b"""
    if isinstance(node.orelse, cst.Else):
        yield node.with_changes(orelse=None)
    elif isinstance(node.orelse, cst.If):
        yield node.with_changes(orelse=node.orelse.orelse)


@register_bug("conditions", cst.IfExp)
def choice_drop(node: cst.IfExp, place: Place) -> Iterator[Change]:
    """a if b else c -> a"""
    for part in (node.body, node.orelse):
        yield part.with_changes(lpar=node.lpar, rpar=node.rpar) if node.lpar and not part.lpar else part


def _leaves(block: cst.IndentedBlock) -> bool:
    """Whether a block ends the function or the turn of a loop, so that what follows it would be dead."""
    last = block.body[-1] if block.body else None
    simple = isinstance(last, cst.SimpleStatementLine) and bool(last.body)
    return simple and isinstance(last.body[-1], cst.Return | cst.Raise | cst.Continue | cst.Break)  # type: ignore[union-attr]
