"""Each bug operator makes the bug that it names."""

import ast
from textwrap import dedent

import pytest

from harness.pool.kata import operators
from harness.pool.kata.operators import OPERATORS, Mutant, mutants, register_operator


def bodies(operator, *lines, args="a, b"):
    source = f"def f({args}):\n" + "".join(f"    {line}\n" for line in lines)
    found = [m.source for m in mutants(ast.parse(source)) if m.operator == operator]
    return [dedent(text.split("\n", 1)[1]).rstrip("\n") for text in found]


@pytest.mark.parametrize(
    ("operator", "line", "expected"),
    [
        ("comparison", "return a < b", ["return a <= b", "return a > b"]),
        ("comparison", "return a == b", ["return a != b"]),
        ("comparison", "return a not in b", ["return a in b"]),
        ("arithmetic", "return a + b", ["return a - b", "return a * b"]),
        ("arithmetic", "return a // b", ["return a / b", "return a % b"]),
        ("arithmetic", "a += b", ["a -= b", "a *= b"]),
        ("boundary", "return range(a)", ["return range(1, a)", "return range(a - 1)", "return range(a + 1)"]),
        (
            "boundary",
            "return range(1, a + 1)",
            ["return range(1, a)", "return range(1, a + 1 + 1)", "return range(2, a + 1)", "return range(a + 1)"],
        ),
        ("boundary", "return a[0]", ["return a[1]", "return a[-1]"]),
        ("boundary", "return a[-1]", ["return a[0]", "return a[-2]"]),
        ("boundary", "return a[1:]", ["return a[2:]"]),
        ("constant", "return 3", ["return 4", "return 2"]),
        ("constant", "return 0", ["return 1"]),
        ("constant", "return 'xyz'", ["return 'xy'"]),
        ("constant", "return ''", ["return ' '"]),
        ("constant", "return True", ["return False"]),
        ("wrong-variable", "return a", ["return b"]),
        ("missing-return", "return a", ["a"]),
        ("boolean", "return a and b", ["return not (a and b)", "return a or b"]),
        ("boolean", "return not a", ["return a"]),
        ("wrong-call", "return max(a)", ["return min(a)", "return sum(a)"]),
        ("wrong-call", "return max(a, b)", ["return min(a, b)"]),
        ("wrong-call", "return a.upper()", ["return a.lower()", "return a.title()"]),
        ("missing-call", "return abs(a)", ["return a"]),
        ("missing-call", "return a.strip()", ["return a"]),
        ("swapped", "return a - b", ["return b - a"]),
        ("swapped", "return pow(a, b)", ["return pow(b, a)"]),
        ("swapped", "return [a, b]", ["return [b, a]"]),
        ("swapped-branches", "return a if a > 1 else b", ["return b if a > 1 else a"]),
        ("missing-term", "return a + b", ["return a", "return b"]),
        ("missing-term", "return -a", ["return a"]),
        ("overwrite", "a += b", ["a = b"]),
        ("missing-condition", "return [x for x in a if x]", ["return [x for x in a]"]),
    ],
)
def test_an_operator_makes_its_bug(operator, line, expected):
    assert bodies(operator, line) == expected


def test_bugs_of_whole_statements():
    loop = bodies("early-return", "for x in a:", "    b += x", "return b")
    assert loop == ["for x in a:\n    b += x\n    return b\nreturn b"]
    branches = bodies("swapped-branches", "if a:", "    return 1", "return 2")
    assert branches == ["if a:\n    return 2\nreturn 1"]


def test_every_operator_is_covered_above():
    (mark,) = test_an_operator_makes_its_bug.pytestmark
    covered = {case[0] for case in mark.args[1]}
    assert covered | {"early-return"} == set(OPERATORS)


def test_mutants_are_distinct_compilable_and_repeatable():
    source = "def f(xs):\n    n = 0\n    for x in xs:\n        if x > 1 and x != 3:\n            n += x\n    return n\n"
    tree = ast.parse(source)
    before = ast.dump(tree, include_attributes=True)
    found = mutants(tree)
    assert found == mutants(ast.parse(source))
    assert ast.dump(tree, include_attributes=True) == before
    texts = [m.source for m in found]
    assert len(set(texts)) == len(texts)
    assert source not in texts
    for text in texts:
        compile(text, "mutant", "exec")


def test_a_registered_operator_takes_part(monkeypatch):
    monkeypatch.setattr(operators, "OPERATORS", {})

    @register_operator("to-none")
    def to_none(node, scope):
        if isinstance(node, ast.Return):
            yield ast.Return(ast.Constant(None))

    assert mutants(ast.parse("def f(a):\n    return a\n")) == [Mutant("to-none", "def f(a):\n    return None\n")]
    with pytest.raises(ValueError, match="registered twice"):
        register_operator("to-none")(to_none)
