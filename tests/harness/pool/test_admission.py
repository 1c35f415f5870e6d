"""Admission: nothing done 0 and the solution 1, each time, or the quarantine with a reason."""

from types import SimpleNamespace

import pytest

from harness.pool.admission import admit
from harness.verifier import Status, Verdict

TASK = SimpleNamespace(
    verifier_timeout=9.0,
    grading=SimpleNamespace(fail_to_pass=["f"], expected=["f", "p"]),
    solution_changes=lambda: {"m.py": b"x"},
)
BAD = Verdict(0.0, Status.FAILED, "", {"f": "failed", "p": "passed"})
GOOD = Verdict(1.0, Status.PASSED, "", {"f": "passed", "p": "passed"}, seconds=2.0)


@pytest.fixture
def admitted():
    async def run(bad, good, runs=3, may_break=False):
        left = {True: list(good), False: list(bad)[1:]}
        counts = {True: 0, False: 1}

        async def judge(task, patch):
            kind = bool(patch.files)
            counts[kind] += 1
            return left[kind].pop(0)

        return await admit(TASK, bad[0], runs, judge, may_break=may_break), counts

    return run


async def test_agreement_admits_and_counts_every_grading(admitted):
    answer, counts = await admitted([BAD] * 3, [GOOD] * 3)
    assert answer.admitted and answer.final and counts == {True: 3, False: 3}
    assert answer.failing == ("f",) and answer.seconds == 2.0 and answer.report_bytes == len(GOOD.to_json())


@pytest.mark.parametrize(
    ("bad", "good", "reason"),
    [
        ([BAD, BAD, GOOD], [GOOD] * 3, "nothing done is passed in grading 3"),
        ([BAD] * 3, [GOOD, BAD, GOOD], "the solution is failed in grading 2"),
        ([BAD] * 3, [BAD], "the solution is failed in grading 1"),
        ([Verdict(0.0, Status.BROKEN, "no import")], [GOOD], "nothing done is broken in grading 1: no import"),
        ([BAD, BAD, Verdict(0.0, Status.FAILED, "", {"f": "failed", "p": "failed"})], [GOOD] * 3, "flaky"),
    ],
)
async def test_one_that_is_not_as_it_must_be_is_enough(admitted, bad, good, reason):
    answer, _ = await admitted(bad, good)
    assert not answer.admitted and answer.final and reason in answer.reason


async def test_a_broken_machine_is_no_answer(admitted):
    answer, _ = await admitted([BAD], [Verdict(0.0, Status.INFRA_ERROR, "no sandbox")])
    assert not answer.admitted and not answer.final and "no sandbox" in answer.reason


async def test_tests_that_cannot_be_collected_count_as_failed_where_they_may(admitted):
    broken = Verdict(0.0, Status.BROKEN, "no import")
    answer, counts = await admitted([broken] * 3, [GOOD] * 3, may_break=True)
    assert answer.admitted and answer.failing == ("f", "p") and counts == {True: 3, False: 3}


async def test_a_task_without_a_solution_is_not_admitted():
    task = SimpleNamespace(solution_changes=lambda: None)
    answer = await admit(task, BAD, 3, None)
    assert not answer.admitted and answer.final and "solution/files" in answer.reason
