"""Makes a copy of a test wrong: one expectation that is sure to be checked gets another value.

The wrong value is as plausible as the right one (a neighbour, one character changed), so that code which answers what
a test seems to expect, read from its frame or its text, cannot tell the copy from the test. Only where an assertion
has a tolerance is it far off. Where the expectation is a variable, the variable itself becomes wrong.
"""

import ast
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harness import syntax

FunctionLike = ast.FunctionDef | ast.AsyncFunctionDef

UNCERTAIN = (ast.Return, ast.Break, ast.Continue, ast.Raise, ast.Try, ast.Yield, ast.YieldFrom)
"""What can keep a statement of a test from being reached."""

_EXACT = frozenset(
    {
        "assertCountEqual",
        "assertDictEqual",
        "assertEqual",
        "assertListEqual",
        "assertMultiLineEqual",
        "assertSequenceEqual",
        "assertSetEqual",
        "assertTupleEqual",
    }
)
_TOLERANT = frozenset({"assertAlmostEqual"})

_AT_RUN_TIME = """\
def {name}(value):
    if type(value) is bool:
        return not value
    if type(value) in (int, float):
        wrong = value + {step} + {share} * abs(value)
        return wrong if wrong != value else object()
    if type(value) is str:
        return value + {letter!r}
    if type(value) in (list, tuple):
        return value + type(value)(value[-1:] or [{step}])
    if type(value) is dict:
        return {{**value, {letter!r}: {step}}}
    return object()
"""


@dataclass(frozen=True)
class Expectation:
    """One equality of a test: the expected value is `sides[index]`, of the statement `block[at]`."""

    block: list[ast.stmt]
    at: int
    sides: list[ast.expr]
    index: int
    exact: bool

    @property
    def expected(self) -> ast.expr:
        return self.sides[self.index]


def expect_wrong(test: FunctionLike, new_name: Callable[[], str], rng: random.Random) -> bool:
    """Make one expectation of `test` wrong; whether it has one that is sure to be checked."""
    found = list(expectations(test.body))
    rng.shuffle(found)
    for one in found:  # literals first: their wrong value is known to be of the same type
        value = wrong_literal(one.expected, rng, one.exact)
        if value is not None:
            one.sides[one.index] = value
            return True
    for one in found:
        helper = new_name()
        call = ast.Call(ast.Name(helper, ast.Load()), [one.expected], [])
        if _is_own_variable(one, test):
            variable = one.expected
            assert isinstance(variable, ast.Name)
            one.block.insert(one.at, ast.Assign([ast.Name(variable.id, ast.Store())], call))
        else:
            one.sides[one.index] = call
        test.body.insert(0, _helper(helper, one.exact, rng))
        return True
    return False


def expectations(body: list[ast.stmt]) -> Iterator[Expectation]:
    """Each equality that is checked whenever `body` runs."""
    literal_names: set[str] = set()
    for at, node in enumerate(body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _has_items(value, literal_names):
                literal_names.add(name)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=attr), args=args)):
                if attr in _EXACT | _TOLERANT and len(args) >= 2:
                    exact = attr in _EXACT and not any(map(_is_approximate, args))
                    yield Expectation(body, at, args, 0 if is_literal(args[0]) else 1, exact)
            case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right] as sides)):
                exact = not _is_approximate(left) and not _is_approximate(right)
                yield Expectation(body, at, _inside_approximate(sides), 0, exact)
            case ast.With(items=items, body=inner) if all(_is_subtest(item.context_expr) for item in items):
                yield from expectations(inner)
            case ast.For(iter=source, body=inner) if _has_items(source, literal_names):
                yield from expectations(inner)


def _is_approximate(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "approx"


def _inside_approximate(sides: list[ast.expr]) -> list[ast.expr]:
    """The operands of an equality, or the arguments of pytest's `approx` when that is what it compares with."""
    side = sides[0]
    return side.args if _is_approximate(side) and isinstance(side, ast.Call) and side.args else sides


def _has_items(node: ast.expr, literal_names: set[str]) -> bool:
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return any(not isinstance(element, ast.Starred) for element in elements)
        case ast.Name(id=name):
            return name in literal_names
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
            return _has_items(inner, literal_names)
    return False


def _is_subtest(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "subTest"


def _is_own_variable(one: Expectation, test: FunctionLike) -> bool:
    """Whether the expectation is a variable of the test that its statement uses for nothing else."""
    if not isinstance(one.expected, ast.Name):
        return False
    name = one.expected.id
    arguments = {argument.arg for argument in test.args.args}
    stored = {n.id for n in ast.walk(test) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    uses = [n for n in ast.walk(one.block[one.at]) if isinstance(n, ast.Name) and n.id == name]
    return name in arguments | stored and len(uses) == 1


def _helper(name: str, exact: bool, rng: random.Random) -> ast.stmt:
    step = _step(rng) if exact else rng.randrange(10**6, 10**9)
    code = _AT_RUN_TIME.format(name=name, step=step, share=0 if exact else 1, letter=rng.choice(_LETTERS))
    return syntax.parse(code).body[0]


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _step(rng: random.Random) -> int:
    return rng.choice((-3, -2, -1, 1, 2, 3))


def is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def wrong_literal(node: ast.expr, rng: random.Random, exact: bool) -> ast.expr | None:
    if not is_literal(node):
        return None
    value = wrong_value(ast.literal_eval(node), rng, exact)
    if value is None:
        return None
    (statement,) = syntax.parse(repr(value)).body
    assert isinstance(statement, ast.Expr)
    return statement.value


def wrong_value(value: Any, rng: random.Random, exact: bool = True) -> Any:
    """A value of the same type that differs from `value`; None, which has no other of its type, becomes an int.

    With `exact` a neighbour; without, one beyond any sensible tolerance. None is returned where there is no such value.
    """
    if isinstance(value, bool):
        return not value
    if value is None:
        return _step(rng)
    if isinstance(value, int | float):
        if not math.isfinite(value) or (isinstance(value, float) and abs(value) >= 1e15):
            return None
        return value + (_step(rng) if exact else abs(value) + rng.randrange(10**6, 10**9))
    if isinstance(value, str):
        return _other_text(value, rng)
    if isinstance(value, bytes):
        return value + value[-1:] if value else bytes([rng.randrange(256)])
    if isinstance(value, list | tuple):
        return _other_items(value, rng, exact)
    if isinstance(value, set):
        return value | {next(n for n in iter(lambda: rng.randrange(100), None) if n not in value)}
    if isinstance(value, dict):
        return _other_items_of(value, rng, exact)
    return None


def _other_text(value: str, rng: random.Random) -> str:
    """The text with one letter or digit changed for another of its kind; or longer, where it has none."""
    places = [at for at, letter in enumerate(value) if letter.isascii() and letter.isalnum()]
    if not places:
        return value + rng.choice(_LETTERS)
    at = rng.choice(places)
    kind = "0123456789" if value[at].isdigit() else _LETTERS if value[at].islower() else _LETTERS.upper()
    return value[:at] + rng.choice([letter for letter in kind if letter != value[at]]) + value[at + 1 :]


def _other_items(value: Any, rng: random.Random, exact: bool) -> Any:
    """A list or tuple with one item changed, or with one more where none can be."""
    at = rng.randrange(len(value)) if value else 0
    item = wrong_value(value[at], rng, exact) if value else None
    if item is None:
        return value + type(value)([_step(rng)])
    return value[:at] + type(value)([item]) + value[at + 1 :]


def _other_items_of(value: dict[Any, Any], rng: random.Random, exact: bool) -> dict[Any, Any]:
    """A dict with one value changed, or with one more item where none can be."""
    if value:
        key = rng.choice(list(value))
        item = wrong_value(value[key], rng, exact)
        if item is not None:
            return {**value, key: item}
    return {**value, next(n for n in iter(lambda: rng.randrange(100), None) if n not in value): 0}
