"""Sentinels among pytest tests fail in honest runs, whatever parameters and fixtures they need, and change nothing."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness.verifier.pytest_sentinels import add_pytest_sentinels

SEEDS = range(3)
SOURCE = '''\
"""Tests of several shapes."""
import math
import unittest

import pytest

WORD = "form\x0cfeed"


@pytest.fixture(params=["p", "q"])
def letter(request):
    return request.param


def test_plain():
    assert 1 + 1 == 2  # a comment


@pytest.mark.parametrize(("a", "b"), [(1, 2), (3, 4)])
def test_pairs(a, b):
    assert a + 1 == b


def test_letters(letter):
    assert letter in "pq"


def test_near(tmp_path):
    assert 0.1 + 0.2 == pytest.approx(0.3)


def test_large():
    assert float("inf") == math.inf
    assert 10**15 == pytest.approx(10**15)


class TestThings:
    def setup_method(self):
        self.x = 3

    def test_x(self):
        """What it is."""
        assert self.x == 3


class TestOuter:
    class TestInner:
        def test_deep(self):
            with pytest.raises(ValueError):
                int("x")
            assert not []


class TestOld(unittest.TestCase):
    def test_old(self):
        self.assertEqual(2 * 2, 4)
        self.assertIn(1, [1])
'''
IDS = [
    *("t.py::test_plain", "t.py::test_pairs[1-2]", "t.py::test_pairs[3-4]", "t.py::test_letters[p]"),
    *("t.py::test_letters[q]", "t.py::test_near", "t.py::test_large", "t.py::TestThings::test_x"),
    *("t.py::TestOuter::TestInner::test_deep", "t.py::TestOld::test_old"),
]


def outcomes(folder: Path, source: bytes) -> dict[str, str]:
    """Outcome by id of pytest's own run over a file."""
    (folder / "t.py").write_bytes(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    argv = [sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-vv", "--tb=no", "-rN", "t.py"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, env={"COLUMNS": "300"})
    found = {}
    for line in done.stdout.splitlines():
        for word in (" PASSED", " FAILED", " ERROR", " SKIPPED"):
            if word in line:
                found[line[: line.index(word)]] = word.strip()
    assert found, done.stdout + done.stderr
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_all_sentinels_fail_and_all_tests_pass(tmp_path: Path, seed: int) -> None:
    made = add_pytest_sentinels({"t.py": SOURCE.encode()}, IDS, random.Random(seed))
    found = outcomes(tmp_path, made.files["t.py"])
    assert {name: found[name] for name in IDS} == dict.fromkeys(IDS, "PASSED")
    assert {found[name] for name in made.twins} == {"FAILED"}
    assert {twin for twin in made.twins.values() if twin} <= set(IDS)
    assert any(made.twins.values()), "some are copies of tests"
    assert None in made.twins.values(), "some are about constants"


def single(body: str, head: str = "def test_it():") -> tuple[bytes, list[str]]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"import pytest\n\n{head}\n{lines}".encode(), ["t.py::test_it"]


@pytest.mark.parametrize(
    "body",
    [
        "assert 1 + 1 == 2",
        "assert not []",
        "assert 1 in [1]",
        "x = 2\nassert 1 + 1 == x",
        "assert 2.0 == pytest.approx(2)",
        "with pytest.raises(ValueError):\n    int('x')\nassert 3 == 1 + 2",
    ],
)
def test_what_is_surely_checked_is_copied(tmp_path: Path, body: str) -> None:
    source, ids = single(body)
    made = add_pytest_sentinels({"t.py": source}, ids, random.Random(0))
    copies = [name for name, twin in made.twins.items() if twin]
    found = outcomes(tmp_path, made.files["t.py"])
    assert found[ids[0]] == "PASSED"
    assert copies and {found[name] for name in copies} == {"FAILED"}
    assert next(name for name in found if name in {*copies, *ids}) in copies, "a copy runs first"


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("if 1 > 2:\n    assert 1 == 2", "def test_it():"),
        ("return\nassert 1 == 2", "def test_it():"),
        ("pytest.skip('x')\nassert 1 == 2", "def test_it():"),
        ("with pytest.raises(AssertionError):\n    assert 1 == 2", "def test_it():"),
        ("assert 1 == 1", "@pytest.mark.xfail\ndef test_it():"),
        ("for x in list():\n    assert x == 1", "def test_it():"),
    ],
)
def test_what_may_not_be_checked_gets_no_copy(body: str, head: str) -> None:
    source, ids = single(body, head)
    made = add_pytest_sentinels({"t.py": source}, ids, random.Random(0))
    assert made.twins and set(made.twins.values()) == {None}


def test_the_rest_of_the_file_stays_and_names_are_new(tmp_path: Path) -> None:
    drawn = [add_pytest_sentinels({"t.py": SOURCE.encode(), "d": b"\xff"}, IDS, random.Random(s)) for s in range(8)]
    for made in drawn:
        lines = iter(made.files["t.py"].decode().split("\n"))
        assert all(line in lines for line in SOURCE.split("\n")), "the lines of the file, in their order"
        assert made.files["d"] == b"\xff"
        assert made.twins.keys().isdisjoint(IDS)
    assert len({frozenset(made.twins) for made in drawn}) > 1


def test_tests_that_only_run_time_makes_get_a_sentinel_beside_them() -> None:
    source = b"def make():\n    def test_made():\n        assert 1\n    return test_made\ntest_made = make()\n"
    made = add_pytest_sentinels({"t.py": source}, ["t.py::test_made"], random.Random(0))
    assert len(made.twins) == 1
    assert made.files["t.py"].startswith(source)
