"""The catalogue is correct, small, plain, and without doubles."""

import ast
import re

import pytest

from harness.pool.kata.catalogue import CATALOGUE
from harness.pool.kata.kata import Kata


def shape(kata: Kata) -> str:
    """The body with all the function's own names replaced by their order, so that only the idea is left."""
    function = kata.tree.body[0]
    order: dict[str, str] = {}
    names = [a.arg for a in function.args.args]
    names += [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for name in names:
        order.setdefault(name, f"v{len(order)}")
    return re.sub(r"\b\w+\b", lambda m: order.get(m[0], m[0]), kata.source.split(":", 1)[1])


def test_there_are_enough_functions_over_many_themes():
    assert len(CATALOGUE) >= 72
    assert len({kata.theme for kata in CATALOGUE.values()}) >= 10


def test_no_two_functions_are_the_same_but_for_names():
    """Otherwise a held-out function could be one that was trained on."""
    shapes = {}
    for kata in CATALOGUE.values():
        assert shapes.setdefault(shape(kata), kata.name) == kata.name


@pytest.mark.parametrize("kata", CATALOGUE.values(), ids=lambda kata: kata.name)
def test_a_function_is_correct_small_and_plain(kata):
    assert ast.unparse(kata.tree) + "\n" == kata.source, "a mutant would differ in more than its bug"
    assert len(kata.source) <= 170
    assert len(kata.source.splitlines()) <= 7
    assert "import" not in kata.source
    assert kata.tree.body[0].name == kata.name
    assert kata.description[0].islower() and not kata.description.endswith(".")
    assert len(kata.rows) >= 6
    calls = [repr(row[:-1]) for row in kata.rows]
    assert len(set(calls)) == len(calls)
    namespace = {}
    exec(kata.source, namespace)
    for *args, expected in kata.rows:
        text = repr(expected)
        assert namespace[kata.name](*args) == expected
        assert repr(expected) == text
