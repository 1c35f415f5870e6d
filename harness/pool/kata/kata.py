"""One entry of the catalogue: a small function, what it should do, and the cases that pin it down."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent
from typing import Any

from harness import syntax

SOLUTION_FILE = "solution.py"
TEST_MODULE = "test_solution"
TEST_CLASS = "TestSolution"

EASY_NODES = 17
"""Largest syntax tree of a function that counts as easy; `return a + b` with its signature has 12 nodes."""


@dataclass(frozen=True)
class Kata:
    """A correct function of a theme.

    `description` completes the sentence "It should ...". `source` is in the form that `ast.unparse` writes, so that a
    mutated copy differs from it in nothing but the bug. A row of `rows` is the arguments, then the expected value.
    """

    theme: str
    name: str
    description: str
    source: str
    rows: Sequence[tuple[Any, ...]]

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed source; to be copied, never changed."""
        return syntax.parse(self.source)

    @property
    def difficulty(self) -> str:
        """A hint from the size: one short expression, a longer one or a few lines, or more."""
        lines, nodes = self.source.count("\n"), sum(1 for _ in ast.walk(self.tree))
        if lines <= 2 and nodes <= EASY_NODES:
            return "easy"
        return "medium" if lines <= 4 else "hard"

    @property
    def instruction(self) -> str:
        """What the agent is asked. The code itself is for the scaffold to show."""
        return f"The function `{self.name}` in {SOLUTION_FILE} has a bug. It should {self.description}.\n"

    @property
    def test_source(self) -> str:
        """The hidden tests: one method a row."""
        lines = ["import unittest", "", f"from solution import {self.name}", "", ""]
        lines += [f"class {TEST_CLASS}(unittest.TestCase):"]
        for number, (*args, expected) in enumerate(self.rows, start=1):
            call = f"{self.name}({', '.join(map(repr, args))})"
            lines += [f"    def test_case_{number}(self):", f"        self.assertEqual({call}, {expected!r})", ""]
        return "\n".join(lines)


def kata(theme: str, name: str, description: str, source: str, *rows: tuple[Any, ...]) -> Kata:
    """A `Kata` from an indented source."""
    return Kata(theme, name, description, dedent(source).strip() + "\n", rows)
