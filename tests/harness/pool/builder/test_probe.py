"""What the run of a bug's tests says of it."""

import pytest

from harness.pool.builder.baseline import Baseline
from harness.pool.builder.choose import Choice
from harness.pool.builder.mutate import SourceFile
from harness.pool.builder.probe import KEPT, Probe, candidate, judge, leaves_trace
from harness.pool.builder.runner import RunResult, TestEnd

TEXT = "def f(a):\n    b = a + 1\n    return b\n\n\nclass C:\n    x = 1\n    y = 2\n"
TESTS = {f"t.py::test_{n}": 0.1 for n in range(4)}
BASELINE = Baseline(
    TESTS, {}, {"m.py": {"t.py::test_0": 0b1110, "t.py::test_1": 0b0010, "t.py::test_2": 0b1110}}, 0.1, ()
)


def candidate_of(kind, text=TEXT):
    source = SourceFile("m.py", text)
    site = source.sites([kind])[0]
    return candidate(Choice("m.py", (site,)), source.render([site]), BASELINE, "context")


def result_of(ending="ended", **ends):
    tests = {f"t.py::{name}": TestEnd(status, 0.1) for name, status in ends.items()}
    return RunResult("x", ending, tests)


def test_only_tests_that_run_the_changed_lines_are_tried():
    one = candidate_of("operator_change")
    assert one.tests == ("t.py::test_0", "t.py::test_2")
    run = one.run(BASELINE)
    assert run.files == ("t.py",) and "a - 1" in run.replaced["m.py"]


def test_what_runs_on_import_is_tried_by_all_that_touch_the_file():
    assert candidate_of("attribute_drop").tests == ("t.py::test_0", "t.py::test_1", "t.py::test_2")


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (result_of(test_0="passed", test_2="failed"), KEPT),
        (result_of(test_0="passed", test_2="passed"), "survived"),
        (result_of(test_0="failed", test_2="error"), KEPT),
        (result_of(test_0="failed"), "import"),
        (result_of("hang", test_0="failed"), "hang"),
        (result_of("crash"), "crash"),
    ],
)
def test_outcomes(result, outcome):
    probe = judge(candidate_of("operator_change"), result, BASELINE, 0.5)
    assert probe.outcome == outcome
    assert bool(probe.failing) == (outcome == KEPT)
    assert Probe.from_dict(probe.to_dict()) == probe


def test_a_bug_that_fails_too_much_is_a_wreck():
    result = result_of(test_0="failed", test_2="failed")
    assert judge(candidate_of("operator_change"), result, BASELINE, 0.4).outcome == "wreck"
    few = Baseline({t: 0.1 for t in ("t.py::test_0", "t.py::test_2")}, {}, BASELINE.lines, 0.1, ())
    assert judge(candidate_of("operator_change"), result, few, 1.0).outcome == "wreck"


def test_a_copy_of_the_clean_function_elsewhere_is_a_trace():
    one = candidate_of("operator_change")
    assert leaves_trace(one, {"m.py": TEXT, "docs.rst": f"As in\n\n{TEXT}"})
    assert not leaves_trace(one, {"m.py": TEXT, "docs.rst": "def f(a):"})


def test_the_digest_is_of_the_text_and_its_package():
    source = SourceFile("m.py", TEXT)
    site = source.sites(["operator_change"])[0]
    digests = {candidate(Choice("m.py", (site,)), source.render([site]), BASELINE, c).digest for c in ("a", "a", "b")}
    assert len(digests) == 2


def test_a_baseline_survives_being_stored():
    assert Baseline.from_bytes(BASELINE.to_bytes()) == BASELINE
