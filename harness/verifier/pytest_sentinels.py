"""Tests that must fail, laid among pytest tests; see `sentinels` for what they are good for.

Beside the two kinds there, a test that compares nothing may be copied with one of its assertions negated: that catches
what keeps assertions from being looked at. A copy of a parametrised test fails for each of the parameters.
"""

import ast
import copy
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness import syntax
from harness.pool.kinds import split_pytest_id
from harness.verifier.sentinels import (
    ENOUGH,
    FALSEHOODS,
    Names,
    SentinelTests,
    different_copies,
    odds_of,
    parse_function,
    source_lines,
)
from harness.verifier.wrong import UNCERTAIN, FunctionLike, expect_wrong

_PLAIN_FALSEHOODS = {
    "assert": "assert {a} == {b}",
    "approx": "import pytest\n    assert {a}.5 == pytest.approx({b}.25)",
    "raises": "import pytest\n    with pytest.raises(KeyError):\n        int({a})",
}
_HARMLESS_MARKS = ("parametrize", "usefixtures", "asyncio", "anyio")
_ENDS_TEST = frozenset({"skip", "skipTest", "xfail", "fail", "exit", "importorskip"})
_MAX_PARAMETERS = 4
_OWN_FIXTURES = frozenset({"self", "tmp_path", "tmpdir", "monkeypatch", "capsys", "capfd", "caplog", "recwarn"})
"""Fixtures that are new for each test, so that a copy of a test cannot disturb the test itself."""


@dataclass(frozen=True)
class _Place:
    """A test function: where it stands, and the ids it yields by their parameters."""

    file: str
    names: tuple[str, ...]
    siblings: list[ast.stmt]
    node: FunctionLike
    parameters: tuple[str, ...]

    def ids(self, name: str) -> dict[str, str]:
        """Some ids of a copy of this function called `name` -> the same ids of this one."""
        path = "::".join((self.file, *self.names[:-1]))
        return {f"{path}::{name}{p}": f"{path}::{self.node.name}{p}" for p in self.parameters[:_MAX_PARAMETERS]}


def add_pytest_sentinels(files: Mapping[str, bytes], test_ids: Sequence[str], rng: random.Random) -> SentinelTests:
    """Lay sentinels among the tests `test_ids` of `files` (path -> content), drawn from `rng`."""
    trees = {path: syntax.parse(files[path]) for path in sorted({split_pytest_id(i)[0] for i in test_ids})}
    places = list(_places(trees, rng.sample(test_ids, len(test_ids))))
    rng.shuffle(places)
    taken = {n.name for tree in trees.values() for n in ast.walk(tree) if isinstance(n, FunctionLike | ast.ClassDef)}
    real = {split_pytest_id(test_id)[1][-1] for test_id in test_ids}
    names = Names(real, rng, taken, prefix="")  # settings may call tests otherwise: each name begins as a real one does
    additions: list[tuple[_Place, FunctionLike, bool]] = []
    numbers: list[int] = []
    twins: dict[str, str | None] = {}
    for place in sorted(places, key=_may_disturb):
        copies = _copies(place.node, names, rng) if odds_of(numbers) > ENOUGH else []
        numbers.append(len(copies))
        for number, wrong in enumerate(copies):
            additions.append((place, wrong, number == 0))
            twins |= place.ids(wrong.name)
    for place, body in _framework(places, trees, names, rng):
        additions.append((place, body, False))
        twins |= dict.fromkeys(place.ids(body.name))
    if not places:
        path, body = next(iter(trees)), parse_function(f"def {names.new()}():\n    {_falsehood('assert', rng)}")
        return SentinelTests({**files, path: _append(files[path], body)}, {f"{path}::{body.name}": None})
    return SentinelTests({**files, **_with(files, additions, rng)}, twins)


def _places(trees: Mapping[str, ast.Module], test_ids: Sequence[str]) -> Iterator[_Place]:
    parameters: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for test_id in test_ids:
        file, names, brackets = split_pytest_id(test_id)
        parameters[file, tuple(names)].append(brackets)  # in the random order of `test_ids`
    for (file, path), found_brackets in parameters.items():
        siblings: list[ast.stmt] = trees[file].body
        for name in path[:-1]:
            found = next((n for n in siblings if isinstance(n, ast.ClassDef) and n.name == name), None)
            siblings = found.body if found else []
        node = next((n for n in siblings if isinstance(n, FunctionLike) and n.name == path[-1]), None)
        if node is not None:
            yield _Place(file, path, siblings, node, tuple(found_brackets))


def _may_disturb(place: _Place) -> bool:
    arguments = {argument.arg for argument in place.node.args.args}
    marked = {word for d in place.node.decorator_list for n in ast.walk(d) for word in _words(n)}
    return not arguments <= _OWN_FIXTURES | marked


def _words(node: ast.AST) -> list[str]:
    """Names in the string constants of a `parametrize` mark: the arguments that are no fixtures."""
    return node.value.replace(",", " ").split() if isinstance(node, ast.Constant) and type(node.value) is str else []


def _copies(node: FunctionLike, names: Names, rng: random.Random) -> Sequence[FunctionLike]:
    """Copies of a test that must fail; none if no assertion of it is sure to be checked."""
    if not all(_is_harmless(decorator) for decorator in node.decorator_list):
        return []
    inner = [n for statement in node.body for n in ast.walk(statement)]
    if any(isinstance(n, UNCERTAIN) or _name(n) in _ENDS_TEST for n in inner):
        return []
    return different_copies(node, names, lambda wrong: expect_wrong(wrong, names.new, rng)) or different_copies(
        node, names, lambda wrong: _negate(wrong, rng)
    )


def _negate(test: FunctionLike, rng: random.Random) -> bool:
    checks = [statement for statement in test.body if isinstance(statement, ast.Assert)]
    if not checks:
        return False
    check = rng.choice(checks)
    check.test, check.msg = ast.UnaryOp(ast.Not(), check.test), None
    return True


def _is_harmless(decorator: ast.expr) -> bool:
    mark = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(mark, ast.Attribute) and mark.attr in _HARMLESS_MARKS and ".mark." in ast.unparse(mark)


def _framework(
    places: Sequence[_Place], trees: Mapping[str, ast.Module], names: Names, rng: random.Random
) -> Iterator[tuple[_Place, FunctionLike]]:
    """One falsehood for each way of asserting that the tests use, beside a test that can use it."""
    used = {"assert"}
    methods = {}
    for tree in trees.values():
        used |= {word for n in ast.walk(tree) if (word := _name(n)) in _PLAIN_FALSEHOODS}
    for place in places:
        for node in ast.walk(place.node):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                methods[node.attr] = place
    chosen = {kind: rng.choice(places) for kind in used} if places else {}
    for kind, place in sorted((chosen | {k: p for k, p in methods.items() if k in FALSEHOODS}).items()):
        body = copy.deepcopy(place.node)  # with its decorators and arguments, so that it yields the same parameters
        body.name, body.body = names.new(), parse_function(f"def f():\n    {_falsehood(kind, rng)}").body
        yield place, body


def _name(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _falsehood(kind: str, rng: random.Random) -> str:
    a, b = rng.sample(range(10, 10_000), 2)
    return {**FALSEHOODS, **_PLAIN_FALSEHOODS}[kind].format(a=a, b=b)


def _with(
    files: Mapping[str, bytes], additions: Sequence[tuple[_Place, FunctionLike, bool]], rng: random.Random
) -> dict[str, bytes]:
    """The files with each function right before the test it belongs to, as the flag demands, or after it anywhere.

    pytest runs tests in the order of their text: what is seen first is never known to be right.
    """
    inserted: dict[str, list[tuple[int, str]]] = defaultdict(list)
    lines = {path: source_lines(files[path].decode("utf-8")) for path in {p.file for p, _, _ in additions}}
    for place, body, before in additions:
        first = lines[place.file][place.node.lineno - 1]
        indent = first[: len(first) - len(first.lstrip())]
        source = ast.unparse(ast.fix_missing_locations(body))
        text = "".join(f"{indent}{line}\n" for line in source.splitlines())
        if before or rng.random() < 0.5:
            start = min([place.node.lineno, *(decorator.lineno for decorator in place.node.decorator_list)]) - 1
            inserted[place.file].append((start, f"{text}\n\n"))
        else:
            after = [n for n in place.siblings if isinstance(n, FunctionLike) and n.lineno >= place.node.lineno]
            end = rng.choice(after).end_lineno or len(lines[place.file])
            inserted[place.file].append((end, f"\n\n{text}"))
    for path, texts in inserted.items():
        for at, text in sorted(texts, reverse=True):
            lines[path].insert(at, text)
    return {path: "".join(text).encode() for path, text in lines.items()}


def _append(source: bytes, body: FunctionLike) -> bytes:
    return source + b"\n\n\n" + ast.unparse(body).encode() + b"\n"
