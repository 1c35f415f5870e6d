"""Reading JUnit XML and logs, honest and hostile."""

import pytest

from harness.sandbox import ExecResult
from harness.verifier.command_report import ended_badly, judge_rows
from harness.verifier.junit import JUnitError, parse_junit
from harness.verifier.log_parsers import parse_django, parse_pytest, parse_sympy, parse_unittest
from harness.verifier.verdict import Status


def test_junit_cases_and_their_results() -> None:
    text = """<?xml version="1.0"?><testsuites><testsuite name="s"><properties/>
        <testcase classname="a.B" name="one [x y]"/><testcase name="two"><system-out>x</system-out></testcase>
        <testcase classname="a" name="three"><failure>no</failure></testcase>
        <testcase classname="a" name="four"><error/><failure/></testcase>
        <testcase classname="a" name="five"><skipped/></testcase>
        <testcase classname="a" name="six"><flakyFailure/></testcase></testsuite></testsuites>"""
    assert parse_junit(text.encode()) == [
        ("a.B::one [x y]", "passed"),
        ("two", "passed"),
        ("a::three", "failed"),
        ("a::four", "error"),
        ("a::five", "skipped"),
        ("a::six", "flaky"),
    ]


BOMB = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'<!DOCTYPE x [<!ENTITY a0 "ha">{BOMB}]><testsuite><testcase name="&a9;"/></testsuite>', "document type"),
        ('<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><testsuite>&e;</testsuite>', "document type"),
        ('<!DOCTYPE x SYSTEM "http://host/x.dtd"><testsuite/>', "document type"),
        ("<testsuite>" * 100, "levels"),
        ("<testsuite><testcase name='a'>", "no JUnit XML"),
        ("", "no JUnit XML"),
        ("<html/>", "root element"),
        ("\0", "no JUnit XML"),
    ],
)
def test_hostile_xml_is_refused(text: str, message: str) -> None:
    with pytest.raises(JUnitError, match=message):
        parse_junit(text.encode())


def test_pytests_summary_keeps_ids_with_spaces_and_dashes() -> None:
    ids = ["t.py::test_a[x - y]", "t.py::test_b[a b]", "t.py::test_c", "t.py::test_d[1 - 2]"]
    log = """\
PASSED t.py::test_c
======================= short test summary info ========================
PASSED t.py::test_a[x - y]
\x1b[32mPASSED\x1b[0m t.py::test_b[a b]
SKIPPED [1] t.py:3: why not
FAILED t.py::test_c - assert 1 == 2 - really
FAILED t.py::test_d[1 - 2] - ValueError
XFAIL t.py::test_e - reason
========================= 2 passed, 2 failed in 0.1s ===================
"""
    rows = dict(parse_pytest(log, ids))
    assert {name: rows[name] for name in ids} == dict(zip(ids, ("passed", "passed", "failed", "failed"), strict=True))
    assert rows["t.py::test_e"] == "xfailed"
    assert parse_pytest("PASSED t.py::test_c\n", ids) == [], "only the summary counts"


def test_unittests_lines() -> None:
    log = """\
test_a (pkg.test_x.TestX.test_a) ... ok
test_b (pkg.test_x.TestX) ... FAIL
test_c (pkg.test_x.TestX.test_c)
What it does. ... ok
test_d (pkg.test_x.TestX.test_d) ... some output
ok
test_e (pkg.test_x.TestX.test_e) ... skipped 'why'
test_f (pkg.test_x.TestX.test_f) ... expected failure
test_g (pkg.test_x.TestX.test_g) ... unexpected success
======================================================================
FAIL: test_b (pkg.test_x.TestX)
"""
    prefix = "pkg.test_x.TestX.test_"
    assert parse_unittest(log, []) == [
        (f"{prefix}a", "passed"),
        (f"{prefix}b", "failed"),
        (f"{prefix}c", "passed"),
        (f"{prefix}d", "passed"),
        (f"{prefix}e", "skipped"),
        (f"{prefix}f", "xfailed"),
        (f"{prefix}g", "xpassed"),
    ]
    rows = dict(parse_django(log, ["What it does."]))
    assert rows["test_a (pkg.test_x.TestX)"] == "passed"
    assert rows["test_b (pkg.test_x.TestX)"] == "failed"
    assert rows["What it does."] == "passed"


def test_sympys_lines() -> None:
    log = """\
============================= test process starts ==============================
sympy/core/tests/test_kind.py[6]
test_NumberKind ok
test_Add_kind F
test_mul_kind E
test_Symbol_kind Slow w
test_both ok
test_twice ok                                                      [OK]

sympy/core/tests/test_basic.py[2]
test_twice F
test_both ok                                                     [FAIL]

________________________________________________________________________________
____________ sympy/core/tests/test_kind.py:test_Add_kind ____________
test_forged ok and more
"""
    assert parse_sympy(log, []) == [
        ("test_NumberKind", "passed"),
        ("test_Add_kind", "failed"),
        ("test_mul_kind", "error"),
        ("test_both", "passed"),
        ("test_twice", "failed"),
    ]


def test_rows_to_judgements() -> None:
    good = [("a", "passed"), ("b", "passed")]
    for rows, code, status in [
        (good, 0, Status.PASSED),
        ([*good, ("c", "failed")], 1, Status.PASSED),
        (good, 1, Status.BROKEN),
        ([*good, ("c", "skipped")], 1, Status.BROKEN),
        (good[:1], 0, Status.FAILED),
        ([("a", "passed"), ("b", "skipped")], 0, Status.FAILED),
        ([("a", "passed"), ("b", "xfailed")], 0, Status.FAILED),
        ([("b", "failed"), *good], 0, Status.TAMPERED),
        ([*good, ("b", "failed")], 1, Status.TAMPERED),
        ([*good, ("b", "passed")], 0, Status.PASSED),
        ([], 0, Status.BROKEN),
    ]:
        assert judge_rows(rows, ["a", "b"], code).status is status, rows


def test_commands_that_did_not_end_by_themselves_are_tried_again() -> None:
    for result in (ExecResult(124, b"", b"", timed_out=True), ExecResult(137, b"", b""), ExecResult(127, b"", b"")):
        judgement = ended_badly(result)
        assert judgement is not None
        assert (judgement.status, judgement.repeat) == (Status.BROKEN, True)
    assert ended_badly(ExecResult(1, b"", b"")) is None
