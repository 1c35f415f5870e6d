"""Admission: bug 0 and solution 1, each time, or the quarantine with a reason."""

import asyncio
from types import SimpleNamespace

import pytest

from harness.pool.builder import admit as module
from harness.pool.builder.admit import admit
from harness.sandbox import SandboxConfig
from harness.verifier import Status, Verdict

TASK = SimpleNamespace(
    verifier_timeout=9.0,
    grading=SimpleNamespace(fail_to_pass=["f"], expected=["f", "p"]),
    solution_changes=lambda: {"m.py": b"x"},
)
BAD = Verdict(0.0, Status.FAILED, "", {"f": "failed", "p": "passed"})
GOOD = Verdict(1.0, Status.PASSED, "", {"f": "passed", "p": "passed"}, seconds=2.0)


@pytest.fixture
def admitted(monkeypatch):
    async def run(bad, good, runs=3):
        left = {True: list(good), False: list(bad)[1:]}
        counts = {True: 0, False: 1}

        async def grade(task, patch, sandbox, limit):
            kind = bool(patch.files)
            counts[kind] += 1
            return left[kind].pop(0)

        monkeypatch.setattr(module, "_grade", grade)
        return await admit(TASK, bad[0], runs, SandboxConfig(), asyncio.Semaphore(1)), counts

    return run


async def test_agreement_admits_and_counts_every_grading(admitted):
    answer, counts = await admitted([BAD] * 3, [GOOD] * 3)
    assert answer.admitted and answer.final and counts == {True: 3, False: 3}
    assert answer.failing == ("f",) and answer.seconds == 2.0 and answer.report_bytes == len(GOOD.to_json())


@pytest.mark.parametrize(
    ("bad", "good", "reason"),
    [
        ([BAD, BAD, GOOD], [GOOD] * 3, "the bug is passed in grading 3"),
        ([BAD] * 3, [GOOD, BAD, GOOD], "the solution is failed in grading 2"),
        ([BAD] * 3, [BAD], "the solution is failed in grading 1"),
        ([Verdict(0.0, Status.BROKEN, "no import")], [GOOD], "the bug is broken in grading 1: no import"),
        ([BAD, BAD, Verdict(0.0, Status.FAILED, "", {"f": "failed", "p": "failed"})], [GOOD] * 3, "flaky"),
    ],
)
async def test_one_that_is_not_as_it_must_be_is_enough(admitted, bad, good, reason):
    answer, _ = await admitted(bad, good)
    assert not answer.admitted and answer.final and reason in answer.reason


async def test_a_broken_machine_is_no_answer(admitted):
    answer, _ = await admitted([BAD], [Verdict(0.0, Status.INFRA_ERROR, "no sandbox")])
    assert not answer.admitted and not answer.final and "no sandbox" in answer.reason
