"""The prover: real test runs, hanging and crashing candidates included."""

import pytest

from harness.pool.kata.kata import kata
from harness.pool.kata.operators import Mutant
from harness.pool.kata.prove import CatalogueError, prove

INC = kata("numbers", "inc", "return n plus 1", "def inc(n):\n    return n + 1", (1, 2), (0, 1), (-1, 0))
IDS = [f"test_solution.TestSolution.test_case_{i}" for i in (1, 2, 3)]


def mutant(body: str) -> Mutant:
    return Mutant("made-up", f"def inc(n):\n    {body}\n")


def test_each_bug_carries_the_tests_it_fails_and_passes():
    half, all_ = mutant("return abs(n + 1) if n else 0"), mutant("return None")
    first, second = prove(INC, [half, all_], 5)
    assert (first.mutant, first.fail_to_pass, first.pass_to_pass) == (half, [IDS[1]], [IDS[0], IDS[2]])
    assert (second.mutant, second.fail_to_pass, second.pass_to_pass) == (all_, IDS, [])


def test_a_mutant_that_behaves_the_same_is_left_out():
    assert prove(INC, [mutant("return 1 + n"), mutant("return n - -1")], 5) == []


def test_only_as_many_as_wanted_in_the_given_order():
    bugs = [mutant(f"return {n}") for n in (7, 8, 9)]
    assert [bug.mutant for bug in prove(INC, bugs, 2)] == bugs[:2]


def test_hanging_mutants_come_last_and_only_when_needed():
    hang, wrong = mutant("\n    while n: pass\n    return 1"), mutant("return 5")
    assert [bug.mutant for bug in prove(INC, [hang, wrong], 1)] == [wrong]
    both = prove(INC, [hang, wrong], 2)
    assert [bug.mutant for bug in both] == [wrong, hang]
    assert both[1].fail_to_pass == [IDS[0], IDS[2]]
    assert both[1].pass_to_pass == [IDS[1]]


def test_a_mutant_that_eats_memory_fails_its_tests_and_no_more():
    greedy = mutant("return len(bytearray(1 << 34))")
    assert prove(INC, [greedy], 1)[0].fail_to_pass == IDS


def test_a_mutant_that_ends_the_process_is_left_out_and_the_rest_goes_on():
    crash, first, last = mutant("\n    import os\n    os._exit(0)"), mutant("return 5"), mutant("return 6")
    assert [bug.mutant for bug in prove(INC, [first, crash, crash, last], 4)] == [first, last]


def test_an_entry_that_contradicts_its_rows_is_named():
    wrong = kata("numbers", "inc", "return n plus 1", "def inc(n):\n    return n + 1", (1, 2), (1, 3))
    with pytest.raises(CatalogueError, match=r"kata inc.*test_case_2"):
        prove(wrong, [mutant("return 1")], 1)
