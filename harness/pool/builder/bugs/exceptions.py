"""Bugs in what is raised, caught and cleaned up."""

from collections.abc import Iterator

import libcst as cst

from harness.pool.builder.bugs.base import Change, Place, register_bug

_OTHER_ERROR = {
    "ValueError": "TypeError",
    "TypeError": "ValueError",
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "AttributeError": "KeyError",
    "StopIteration": "IndexError",
    "OverflowError": "ValueError",
    "ZeroDivisionError": "ValueError",
    "NotImplementedError": "TypeError",
    "RuntimeError": "ValueError",
    "ImportError": "ValueError",
    "UnicodeDecodeError": "KeyError",
    "Exception": "KeyError",
}


@register_bug("exceptions", cst.Raise)
def raise_change(node: cst.Raise, place: Place) -> Iterator[Change]:
    """raise ValueError(a) -> raise TypeError(a)"""
    raised = node.exc.func if isinstance(node.exc, cst.Call) else node.exc
    if isinstance(raised, cst.Name) and raised.value in _OTHER_ERROR:
        other = cst.Name(_OTHER_ERROR[raised.value])
        yield node.with_changes(exc=node.exc.with_changes(func=other) if isinstance(node.exc, cst.Call) else other)


@register_bug("exceptions", cst.Raise)
def raise_drop(node: cst.Raise, place: Place) -> Iterator[Change]:
    """raise a -> pass"""
    yield cst.Pass()


@register_bug("exceptions", cst.ExceptHandler)
def except_change(node: cst.ExceptHandler, place: Place) -> Iterator[Change]:
    """except ValueError: -> except TypeError:"""
    if isinstance(node.type, cst.Name) and node.type.value in _OTHER_ERROR:
        yield node.with_changes(type=cst.Name(_OTHER_ERROR[node.type.value]))
    elif isinstance(node.type, cst.Tuple) and len(node.type.elements) > 1:
        yield node.with_changes(type=node.type.with_changes(elements=node.type.elements[:-1]))


@register_bug("exceptions", cst.Try)
def try_drop(node: cst.Try, place: Place) -> Iterator[Change]:
    """try: a except b: c -> a"""
    if isinstance(node.body, cst.IndentedBlock) and node.orelse is None:
        yield cst.FlattenSentinel(node.body.body)


@register_bug("exceptions", cst.ExceptHandler)
def handler_empty(node: cst.ExceptHandler, place: Place) -> Iterator[Change]:
    """except a: b -> except a: pass"""
    if isinstance(node.body, cst.IndentedBlock):
        pass_line = cst.SimpleStatementLine([cst.Pass()])
        yield node.with_changes(body=node.body.with_changes(body=[pass_line]))
