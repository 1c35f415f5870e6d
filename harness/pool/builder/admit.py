"""Admission: a task enters the pool if the bug scores 0 and the solution 1, each several times in fresh sandboxes."""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.grading import grade_with_retries
from harness.patch import Patch
from harness.pool.builder.together import together
from harness.pool.task import Task
from harness.sandbox import SandboxConfig
from harness.verifier import Status, Verdict, VerifierConfig


@dataclass(frozen=True)
class Admission:
    """Whether a task is admitted, else why not. `failing` are the tests that the bug fails, as the grader sees it.

    `seconds` is the median time of a grading of the solution, `report_bytes` the size of the largest verdict. An answer
    that is not `final` is the machine's fault and is asked for again.
    """

    admitted: bool
    reason: str = ""
    failing: tuple[str, ...] = ()
    seconds: float = 0.0
    report_bytes: int = 0
    final: bool = True


async def first_look(task: Task, sandbox: SandboxConfig, limit: asyncio.Semaphore) -> tuple[Verdict, list[str]]:
    """Grade the bug once: the verdict, and the tests of the task that did not pass."""
    verdict = await _grade(task, Patch(), sandbox, limit)
    return verdict, _failing(task, verdict)


async def admit(task: Task, first: Verdict, runs: int, sandbox: SandboxConfig, limit: asyncio.Semaphore) -> Admission:
    """Grade until bug and solution have `runs` verdicts each, that of `first_look` included.

    Stops at the first one that is not as it must be. The solution comes first: most tasks that fail, fail there.
    """
    changes = task.solution_changes()
    assert changes is not None
    solution = Patch(changes)
    bad, good = [first], [await _grade(task, solution, sandbox, limit)]
    problem = _problem(task, bad, good)
    if problem is None:
        more = await together(
            _grade(task, patch, sandbox, limit) for patch in (Patch(), solution) for _ in range(runs - 1)
        )
        bad += more[: runs - 1]
        good += more[runs - 1 :]
        problem = _problem(task, bad, good)
    if problem is not None:
        return Admission(False, problem[0], final=not problem[1])
    return Admission(
        admitted=True,
        failing=tuple(task.grading.fail_to_pass),
        seconds=statistics.median(verdict.seconds for verdict in good),
        report_bytes=max(len(verdict.to_json()) for verdict in (*bad, *good)),
    )


async def _grade(task: Task, patch: Patch, sandbox: SandboxConfig, limit: asyncio.Semaphore) -> Verdict:
    verifier = VerifierConfig(timeout_sec=task.verifier_timeout, cpu_seconds=max(30, int(task.verifier_timeout)))
    async with limit:
        return await grade_with_retries(task, patch, sandbox, verifier, attempts=2)


def _failing(task: Task, verdict: Verdict) -> list[str]:
    return [test for test in task.grading.expected if verdict.tests.get(test) != "passed"]


def _problem(task: Task, bad: Sequence[Verdict], good: Sequence[Verdict]) -> tuple[str, bool] | None:
    """(what is wrong, whether it is the machine), None if nothing is."""
    for verdict in (*bad, *good):
        if verdict.status is Status.INFRA_ERROR:
            return f"cannot be graded: {verdict.reason}"[:300], True
    for number, verdict in enumerate(bad, start=1):
        if verdict.status is not Status.FAILED:
            return f"the bug is {verdict.status} in grading {number}: {verdict.reason}"[:300], False
        if set(_failing(task, verdict)) != set(task.grading.fail_to_pass):
            return f"flaky: the bug fails other tests in grading {number}", False
    for number, verdict in enumerate(good, start=1):
        if verdict.status is not Status.PASSED:
            return f"the solution is {verdict.status} in grading {number}: {verdict.reason}"[:300], False
    return None
