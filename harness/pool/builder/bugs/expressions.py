"""Bugs in expressions: operators, operands, constants, arguments, indexes."""

from collections.abc import Iterator
from typing import Any

import libcst as cst

from harness.pool.builder.bugs.base import Change, Place, in_parentheses, register_bug

_OTHER_OPERATOR: dict[type[cst.BaseBinaryOp], type[cst.BaseBinaryOp]] = {
    cst.Add: cst.Subtract,
    cst.Subtract: cst.Add,
    cst.Multiply: cst.Add,
    cst.Divide: cst.FloorDivide,
    cst.FloorDivide: cst.Divide,
    cst.Modulo: cst.FloorDivide,
    cst.Power: cst.Multiply,
    cst.LeftShift: cst.RightShift,
    cst.RightShift: cst.LeftShift,
    cst.BitAnd: cst.BitOr,
    cst.BitOr: cst.BitAnd,
    cst.BitXor: cst.BitOr,
}
_OTHER_COMPARISON: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.LessThan: cst.LessThanEqual,
    cst.LessThanEqual: cst.LessThan,
    cst.GreaterThan: cst.GreaterThanEqual,
    cst.GreaterThanEqual: cst.GreaterThan,
    cst.Equal: cst.NotEqual,
    cst.NotEqual: cst.Equal,
    cst.In: cst.NotIn,
    cst.NotIn: cst.In,
    cst.Is: cst.IsNot,
    cst.IsNot: cst.Is,
}
_DIRECTED = cst.Subtract | cst.Divide | cst.FloorDivide | cst.Modulo | cst.Power | cst.LeftShift | cst.RightShift
_FORMATTED = cst.SimpleString | cst.FormattedString | cst.ConcatenatedString
_UNSEEN = (cst.Annotation, cst.Raise, cst.Assert)
"""Places whose expressions decide messages and hints, not results."""


@register_bug("operators", cst.BinaryOperation)
def operator_change(node: cst.BinaryOperation, place: Place) -> Iterator[Change]:
    """a + b -> a - b"""
    other = _OTHER_OPERATOR.get(type(node.operator))
    formats = isinstance(node.operator, cst.Modulo | cst.Add | cst.Multiply) and isinstance(node.left, _FORMATTED)
    if other is not None and not formats and not place.inside(*_UNSEEN):
        operator: Any = node.operator
        spaces = {"whitespace_before": operator.whitespace_before, "whitespace_after": operator.whitespace_after}
        yield node.with_changes(operator=other(**spaces))


@register_bug("operators", cst.ComparisonTarget)
def comparison_change(node: cst.ComparisonTarget, place: Place) -> Iterator[Change]:
    """a < b -> a <= b"""
    other = _OTHER_COMPARISON.get(type(node.operator))
    if other is not None:
        yield node.with_changes(operator=other())


@register_bug("operators", cst.BinaryOperation)
def operand_swap(node: cst.BinaryOperation, place: Place) -> Iterator[Change]:
    """a - b -> b - a"""
    if isinstance(node.operator, _DIRECTED) and not isinstance(node.left, _FORMATTED):
        yield node.with_changes(left=in_parentheses(node.right), right=in_parentheses(node.left))


@register_bug("operators", cst.BooleanOperation)
def boolean_change(node: cst.BooleanOperation, place: Place) -> Iterator[Change]:
    """a and b -> a or b"""
    other = cst.Or if isinstance(node.operator, cst.And) else cst.And
    before, after = node.operator.whitespace_before, node.operator.whitespace_after
    yield node.with_changes(operator=other(whitespace_before=before, whitespace_after=after))


@register_bug("operators", cst.BooleanOperation, cst.BinaryOperation)
def chain_break(node: cst.BooleanOperation | cst.BinaryOperation, place: Place) -> Iterator[Change]:
    """a and b -> a"""
    if isinstance(node.left, _FORMATTED) or isinstance(node.right, _FORMATTED) or place.inside(*_UNSEEN):
        return
    for part in (node.left, node.right):
        yield in_parentheses(part) if node.lpar and not part.lpar else part


@register_bug("operators", cst.UnaryOperation)
def unary_drop(node: cst.UnaryOperation, place: Place) -> Iterator[Change]:
    """not a -> a, -a -> a"""
    yield node.expression


@register_bug("constants", cst.Integer, cst.Float)
def number_change(node: cst.Integer | cst.Float, place: Place) -> Iterator[Change]:
    """1 -> 2"""
    if place.inside(*_UNSEEN) or isinstance(place.parent, cst.Index):
        return
    if isinstance(node, cst.Float):
        yield node.with_changes(value=f"{node.value}1" if "." in node.value and "e" not in node.value else "0.5")
        return
    value = node.evaluated_value
    if node.value.isdigit():
        yield node.with_changes(value=str(value + 1))
        if value > 0:
            yield node.with_changes(value=str(value - 1))


@register_bug("constants", cst.Name)
def truth_change(node: cst.Name, place: Place) -> Iterator[Change]:
    """True -> False"""
    if node.value in ("True", "False"):
        yield node.with_changes(value="False" if node.value == "True" else "True")


@register_bug("constants", cst.SimpleString)
def text_change(node: cst.SimpleString, place: Place) -> Iterator[Change]:
    """' ' -> ''"""
    separator = node.raw_value.strip() == "" or (len(node.raw_value) <= 2 and not node.raw_value.isalnum())
    is_text = node.quote in ("'", '"') and "b" not in node.prefix and not isinstance(place.parent, cst.Expr)
    if is_text and separator and node.raw_value:
        yield node.with_changes(value=f"{node.prefix}{node.quote}{node.quote}")


@register_bug("indexes", cst.Slice)
def slice_shift(node: cst.Slice, place: Place) -> Iterator[Change]:
    """a[i:j] -> a[i + 1:j]"""
    for name in ("lower", "upper"):
        bound = getattr(node, name)
        if bound is not None:
            yield node.with_changes(**{name: _plus_one(bound)})
            yield node.with_changes(**{name: None})


@register_bug("indexes", cst.Index)
def index_shift(node: cst.Index, place: Place) -> Iterator[Change]:
    """a[0] -> a[1], a[-1] -> a[0], a[i] -> a[i - 1]"""
    value = node.value
    if isinstance(value, cst.Integer):
        yield node.with_changes(value=cst.Integer(str(value.evaluated_value + 1)))
    elif isinstance(value, cst.UnaryOperation) and isinstance(value.expression, cst.Integer):
        yield node.with_changes(value=cst.Integer("0"))
    elif isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add | cst.Subtract):
        yield node.with_changes(value=value.left)


def _plus_one(bound: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(bound, cst.Integer):
        return cst.Integer(str(bound.evaluated_value + 1))
    one = cst.Add(cst.SimpleWhitespace(" "), cst.SimpleWhitespace(" "))
    return cst.BinaryOperation(in_parentheses(bound), one, cst.Integer("1"))


@register_bug("arguments", cst.Call)
def argument_swap(node: cst.Call, place: Place) -> Iterator[Change]:
    """f(a, b) -> f(b, a)"""
    plain = [arg for arg in node.args if arg.keyword is None and not arg.star]
    if len(plain) >= 2 and plain == list(node.args[: len(plain)]) and not place.inside(*_UNSEEN):
        first, second, *rest = node.args
        if not first.value.deep_equals(second.value):
            swapped = [first.with_changes(value=second.value), second.with_changes(value=first.value), *rest]
            yield node.with_changes(args=swapped)


@register_bug("arguments", cst.Call)
def argument_drop(node: cst.Call, place: Place) -> Iterator[Change]:
    """f(a, key=b) -> f(a)"""
    if place.inside(*_UNSEEN):
        return
    for number, arg in enumerate(node.args):
        if arg.keyword is not None or (number == len(node.args) - 1 and number > 0 and not arg.star):
            kept = [other for other in node.args if other is not arg]
            if kept:
                kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            yield node.with_changes(args=kept)


_WRAPPERS = {
    *("list", "tuple", "set", "frozenset", "dict", "sorted", "reversed", "iter", "abs", "str", "int", "float", "bool"),
    *("deepcopy", "copy", "repr", "max", "min", "sum"),
}
_TEXT_METHODS = {"strip", "lstrip", "rstrip", "lower", "upper", "copy", "replace", "title"}


@register_bug("wrappers", cst.Call)
def wrapper_drop(node: cst.Call, place: Place) -> Iterator[Change]:
    """sorted(a) -> a, a.strip() -> a"""
    if isinstance(node.func, cst.Name) and node.func.value in _WRAPPERS and node.args:
        first, *others = node.args
        if first.keyword is None and not first.star and all(other.keyword is not None for other in others):
            yield in_parentheses(first.value)
    elif isinstance(node.func, cst.Attribute) and node.func.attr.value in _TEXT_METHODS:
        yield in_parentheses(node.func.value)
