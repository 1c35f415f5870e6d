"""Bugs in single statements and in their order: assignments, returns, yields."""

from collections.abc import Iterator

import libcst as cst

from harness.pool.builder.bugs.base import Change, Place, is_docstring, negated, register_bug

_OTHER_ASSIGNMENT: dict[type[cst.BaseAugOp], type[cst.BaseAugOp]] = {
    cst.AddAssign: cst.SubtractAssign,
    cst.SubtractAssign: cst.AddAssign,
    cst.MultiplyAssign: cst.AddAssign,
    cst.FloorDivideAssign: cst.MultiplyAssign,
    cst.DivideAssign: cst.MultiplyAssign,
    cst.BitOrAssign: cst.BitAndAssign,
    cst.BitAndAssign: cst.BitOrAssign,
    cst.LeftShiftAssign: cst.RightShiftAssign,
    cst.RightShiftAssign: cst.LeftShiftAssign,
}


@register_bug("assignments", cst.AugAssign)
def assignment_change(node: cst.AugAssign, place: Place) -> Iterator[Change]:
    """a += b -> a -= b, a = b"""
    other = _OTHER_ASSIGNMENT.get(type(node.operator))
    if other is not None:
        yield node.with_changes(operator=other())
    yield cst.Assign([cst.AssignTarget(node.target)], node.value)


@register_bug("assignments", cst.Assign, cst.AugAssign)
def assignment_drop(node: cst.Assign | cst.AugAssign, place: Place) -> Iterator[Change]:
    """self.a = b -> nothing"""
    if (
        isinstance(node, cst.AugAssign)
        or all(isinstance(target.target, cst.Attribute | cst.Subscript) for target in node.targets)
        or (isinstance(node.value, cst.Call | cst.BinaryOperation | cst.Subscript) and _renews(node))
    ):
        yield cst.Pass()


def _renews(node: cst.Assign) -> bool:
    """Whether a name gets a value made of its own: without that it keeps the one it has."""
    if len(node.targets) != 1 or not isinstance(node.targets[0].target, cst.Name):
        return False
    name = node.targets[0].target.value
    found = _Names()
    node.value.visit(found)
    return name in found.names


class _Names(cst.CSTVisitor):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)


@register_bug("assignments", cst.Assign)
def target_swap(node: cst.Assign, place: Place) -> Iterator[Change]:
    """a, b = c -> b, a = c"""
    if len(node.targets) == 1 and isinstance(target := node.targets[0].target, cst.Tuple):
        elements = target.elements
        if len(elements) == 2 and not any(isinstance(element, cst.StarredElement) for element in elements):
            first, second = elements
            swapped = [first.with_changes(value=second.value), second.with_changes(value=first.value)]
            yield node.with_changes(
                targets=[node.targets[0].with_changes(target=target.with_changes(elements=swapped))]
            )


@register_bug("returns", cst.Return)
def return_change(node: cst.Return, place: Place) -> Iterator[Change]:
    """return a -> return None, return not a, return its parts the other way round"""
    if node.value is None or (isinstance(node.value, cst.Name) and node.value.value == "None"):
        return
    space = cst.SimpleWhitespace(" ")
    if isinstance(node.value, cst.Comparison | cst.BooleanOperation | cst.UnaryOperation):
        yield node.with_changes(value=negated(node.value), whitespace_after_return=space)
    elif isinstance(node.value, cst.Tuple) and len(node.value.elements) == 2:
        first, second = node.value.elements
        swapped = [first.with_changes(value=second.value), second.with_changes(value=first.value)]
        yield node.with_changes(value=node.value.with_changes(elements=swapped))
    else:
        yield node.with_changes(value=cst.Name("None"), whitespace_after_return=space)


@register_bug("returns", cst.If)
def return_early_drop(node: cst.If, place: Place) -> Iterator[Change]:
    """if a: return b -> if a: pass"""
    body = node.body
    if isinstance(body, cst.IndentedBlock) and len(body.body) == 1:
        line = body.body[0]
        if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 and isinstance(line.body[0], cst.Return):
            empty = line.with_changes(body=[cst.Pass()])
            yield node.with_changes(body=body.with_changes(body=[empty]))


@register_bug("returns", cst.Yield)
def yield_change(node: cst.Yield, place: Place) -> Iterator[Change]:
    """yield from a -> yield a"""
    if isinstance(node.value, cst.From):
        yield node.with_changes(value=node.value.item)
    elif isinstance(node.value, cst.Tuple) and len(node.value.elements) == 2:
        first, second = node.value.elements
        swapped = [first.with_changes(value=second.value), second.with_changes(value=first.value)]
        yield node.with_changes(value=node.value.with_changes(elements=swapped))


@register_bug("control flow", cst.IndentedBlock)
def statement_swap(node: cst.IndentedBlock, place: Place) -> Iterator[Change]:
    """a; b -> b; a"""
    for at in range(len(node.body) - 1):
        first, second = node.body[at], node.body[at + 1]
        if is_docstring(first) or not isinstance(first, cst.SimpleStatementLine | cst.If | cst.For):
            continue
        if isinstance(second, cst.SimpleStatementLine | cst.If | cst.For) and not _ends(first) and not _ends(second):
            yield node.with_changes(body=[*node.body[:at], second, first, *node.body[at + 2 :]])


@register_bug("control flow", cst.SimpleStatementLine)
def call_drop(node: cst.SimpleStatementLine, place: Place) -> Iterator[Change]:
    """a.append(b) -> nothing"""
    if len(node.body) == 1 and isinstance(node.body[0], cst.Expr) and isinstance(node.body[0].value, cst.Call):
        yield cst.RemoveFromParent()


def _ends(statement: cst.CSTNode) -> bool:
    simple = isinstance(statement, cst.SimpleStatementLine) and bool(statement.body)
    return simple and isinstance(statement.body[-1], cst.Return | cst.Raise | cst.Break | cst.Continue | cst.Import)  # type: ignore[attr-defined]
