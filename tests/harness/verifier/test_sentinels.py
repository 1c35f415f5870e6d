"""Sentinels are sure to fail in honest runs, keep the file as it was, and are derived where that is safe."""

import ast
import random
import re
import unittest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.verifier.sentinels import add_sentinels, order_of_running
from harness.verifier.wrong import wrong_value

SEEDS = range(6)


def run_file(source: bytes) -> dict[str, str]:
    """Statuses of the tests of a file, by method name."""
    namespace: dict[str, Any] = {"__name__": "test_x"}
    exec(compile(source, "test_x.py", "exec"), namespace)
    statuses = {}
    for case in (v for v in namespace.values() if isinstance(v, type) and issubclass(v, unittest.TestCase)):
        for name in unittest.TestLoader().getTestCaseNames(case):
            result = unittest.TestResult()
            case(name).run(result)
            bad = "failed" if result.failures else "error" if result.errors else "skipped" if result.skipped else ""
            statuses[name] = bad or "passed"
    return statuses


def file_with(*methods: str) -> tuple[bytes, list[str]]:
    """A test file whose class has the given method bodies; and the ids of its tests."""
    lines = ["import unittest", "class TestX(unittest.TestCase):"]
    for number, body in enumerate(methods):
        lines += [f"    def test_{number}(self):", *(f"        {line}" for line in body.splitlines()), ""]
    return "\n".join(lines).encode(), [f"test_x.TestX.test_{number}" for number in range(len(methods))]


DERIVABLE = [
    "self.assertEqual(1 + 1, 2)",
    "self.assertEqual(2, 1 + 1)",
    "self.assertEqual(''.join('ab'), 'ab')",
    "self.assertEqual(bool(1), True)",
    "self.assertEqual(sorted('ba'), ['a', 'b'])",
    "self.assertEqual(dict(a=1), {'a': 1})",
    "self.assertEqual(set('a'), {'a'})",
    "self.assertEqual(tuple([]), ())",
    "self.assertIsNone(None)\nself.assertEqual(None, {}.get(1))",
    "self.assertAlmostEqual(0.1 + 0.2, 0.3)",
    "assert 1 + 1 == 2",
    "want = 2\nself.assertEqual(1 + 1, want)",
    "for a, b in [(1, 2), (2, 3)]:\n    with self.subTest(a=a):\n        self.assertEqual(a + 1, b)",
    "cases = [(1, 2)]\nfor i, (a, b) in enumerate(cases):\n    self.assertEqual(a + 1, b)",
]


@pytest.mark.parametrize("body", DERIVABLE)
def test_a_copy_with_a_wrong_expectation_fails_beside_its_passing_twin(body: str) -> None:
    for seed in SEEDS:
        source, ids = file_with(body)
        made = add_sentinels({"test_x.py": source}, ids, random.Random(seed))
        assert ids[0] in made.twins.values()
        statuses = run_file(made.files["test_x.py"])
        assert statuses.pop("test_0") == "passed"
        assert set(statuses) == {test_id.rsplit(".", 1)[1] for test_id in made.twins}
        assert made.files["test_x.py"].count(b"def test_") > 1
        assert set(statuses.values()) == {"failed"}


UNSAFE = [
    "if 1 > 2:\n    self.assertEqual(1, 2)",
    "for x in list():\n    self.assertEqual(1, 2)",
    "return\nself.assertEqual(1, 2)",
    "try:\n    self.assertEqual(1, 2)\nexcept AssertionError:\n    pass",
    "with self.assertRaises(AssertionError):\n    self.assertEqual(1, 2)",
    "self.skipTest('x')\nself.assertEqual(1, 2)",
    "self.assertTrue(True)",
    "def inner():\n    self.assertEqual(1, 2)",
]


@pytest.mark.parametrize("body", UNSAFE)
def test_what_may_not_be_checked_gets_no_copy(body: str) -> None:
    source, ids = file_with(body)
    made = add_sentinels({"test_x.py": source}, ids, random.Random(0))
    assert made.twins and set(made.twins.values()) == {None}
    statuses = run_file(made.files["test_x.py"])
    assert {statuses[test_id.rsplit(".", 1)[1]] for test_id in made.twins} == {"failed"}


def test_each_assertion_used_has_a_framework_sentinel() -> None:
    methods = sorted(name for name in dir(unittest.TestCase) if name.startswith("assert") and name[6:7].isupper())
    source, ids = file_with("\n".join(f"self.{name}" for name in methods))
    made = add_sentinels({"test_x.py": source}, ids, random.Random(0))
    statuses = run_file(made.files["test_x.py"])
    assert len(made.twins) >= 20
    assert {statuses[test_id.rsplit(".", 1)[1]] for test_id in made.twins} <= {"failed"}


def test_classes_that_take_no_methods_get_a_file_beside_them() -> None:
    source = b"import unittest\n@unittest.skip('x')\nclass TestX(unittest.TestCase):\n    def test_0(self): pass\n"
    made = add_sentinels({"test_x.py": source}, ["test_x.TestX.test_0"], random.Random(0))
    assert made.files["test_x.py"] == source
    (added,) = made.files.keys() - {"test_x.py"}
    assert set(run_file(made.files[added]).values()) == {"failed"}
    assert all(test_id.startswith(added.removesuffix(".py")) for test_id in made.twins)


def test_the_rest_of_the_file_stays_as_it_was() -> None:
    source, ids = file_with("self.assertEqual(1 + 1, 2)  # a comment")
    source += b"\n\nclass Later:\n    x = 'y'  # kept\n"
    made = add_sentinels({"test_x.py": source, "data": b"\xff"}, ids, random.Random(0))
    added = [line for line in made.files["test_x.py"].splitlines() if line not in source.splitlines()]
    assert (
        b"\n".join(line for line in made.files["test_x.py"].splitlines() if line not in added).split() == source.split()
    )
    assert made.files["data"] == b"\xff"


def test_names_are_new_each_time_and_differ_from_the_real_ones() -> None:
    source, ids = file_with(*(f"self.assertEqual({n} + 1, {n + 1})" for n in range(8)))
    drawn = [frozenset(add_sentinels({"test_x.py": source}, ids, random.Random(s)).twins) for s in range(20)]
    assert len(set(drawn)) > 1
    assert all(names.isdisjoint(ids) for names in drawn)
    ast.parse(add_sentinels({"test_x.py": source}, ids, random.Random(1)).files["test_x.py"])


literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(literals, st.integers())
def test_wrong_values_differ_and_keep_the_type(value: object, seed: int) -> None:
    wrong = wrong_value(value, random.Random(seed))
    assert wrong is not None
    assert wrong != value
    assert type(wrong) is type(value) or value is None


def test_wrong_values_look_as_right_as_the_right_ones() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        assert 0 < abs(wrong_value(7, rng) - 7) <= 3
        assert len(wrong_value("word 1", rng)) == len("word 1")
        assert len(wrong_value([1, 2], rng)) == 2
        assert wrong_value(7, rng, exact=False) > 10**6
        assert wrong_value(7.0, rng, exact=False) > 10**6


def test_a_variable_that_is_expected_becomes_wrong_itself() -> None:
    source, ids = file_with("cases = [(1, 2), (4, 5)]\nfor a, want in cases:\n    self.assertEqual(a + 1, want)")
    made = add_sentinels({"test_x.py": source}, ids, random.Random(0))
    added = made.files["test_x.py"].decode().replace(source.decode(), "")
    assert re.search(r"want = \w+\(want\)\n +self.assertEqual\(a \+ 1, want\)", added)


def test_a_round_trip_of_the_expected_variable_is_no_honest_failure() -> None:
    source, ids = file_with("for x in [1, 2]:\n    self.assertEqual(int(str(x)), x)")
    made = add_sentinels({"test_x.py": source}, ids, random.Random(0))
    statuses = run_file(made.files["test_x.py"])
    assert {statuses[name.rsplit(".", 1)[1]] for name in made.twins} == {"failed"}


def test_a_copy_runs_before_its_test_and_classes_stay_together() -> None:
    ids = [f"m.{c}.test_{n}" for c in ("A", "AB", "B") for n in range(3)]
    twins = {f"m.AB.s{n}": "m.AB.test_1" for n in range(3)} | {"m.AB.s3": "m.AB.test_2", "m.AB.f": None}
    orders = [order_of_running(ids, twins, random.Random(seed)) for seed in range(30)]
    for order in orders:
        assert [i for i in order if i in ids] == ids
        classes = [i.rsplit(".", 1)[0] for i in order]
        assert classes == sorted(classes)
        assert order.index("m.AB.s3") < order.index("m.AB.test_2")
        assert min(order.index(f"m.AB.s{n}") for n in range(3)) < order.index("m.AB.test_1")
    assert len({tuple(order) for order in orders}) > 20
