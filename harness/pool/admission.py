"""Admission: a task enters a pool if nothing done scores 0 and the solution 1, several times, in fresh sandboxes."""

import asyncio
import statistics
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from harness.grading import grade_with_retries
from harness.patch import Patch
from harness.pool.task import Task
from harness.pool.together import together
from harness.sandbox import SandboxConfig
from harness.verifier import Status, Verdict, VerifierConfig

Judge = Callable[[Task, Patch], Coroutine[Any, Any, Verdict]]
"""Grades a patch of a task when its turn has come."""


@dataclass(frozen=True)
class Admission:
    """Whether a task is admitted, else why not. `failing` are the tests that it fails, as the grader sees it.

    `seconds` is the median time of a grading of the solution, `report_bytes` the size of the largest verdict. An answer
    that is not `final` is the machine's fault and is asked for again.
    """

    admitted: bool
    reason: str = ""
    failing: tuple[str, ...] = ()
    seconds: float = 0.0
    report_bytes: int = 0
    final: bool = True


def judge_in(sandbox: SandboxConfig, limit: asyncio.Semaphore, verifier: VerifierConfig | None = None) -> Judge:
    """Grading in sandboxes of `sandbox`, as many at a time as `limit` lets; within the task's own time by default."""

    async def judge(task: Task, patch: Patch) -> Verdict:
        own = VerifierConfig(timeout_sec=task.verifier_timeout, cpu_seconds=max(30, int(task.verifier_timeout)))
        async with limit:
            return await grade_with_retries(task, patch, sandbox, verifier or own, attempts=2)

    return judge


async def first_look(task: Task, judge: Judge) -> tuple[Verdict, list[str]]:
    """Grade nothing done, once: the verdict, and the tests of the task that did not pass."""
    verdict = await judge(task, Patch())
    return verdict, _failing(task, verdict)


async def admit(task: Task, first: Verdict, runs: int, judge: Judge, *, may_break: bool = False) -> Admission:
    """Grade until nothing done and the solution have `runs` verdicts each, that of `first_look` included.

    Stops at the first one that is not as it must be. The solution comes first: most tasks that fail, fail there.
    `may_break`: tests that cannot even be collected count as failed, as those do that import what is still missing.
    """
    changes = task.solution_changes()
    if changes is None:
        return Admission(False, "it ships no solution/files: nothing shows that it can be solved")
    solution = Patch(changes)
    bad, good = [first], [await judge(task, solution)]
    zero = {Status.FAILED, Status.BROKEN} if may_break else {Status.FAILED}
    problem = _problem(task, bad, good, zero)
    if problem is None:
        more = await together(judge(task, patch) for patch in (Patch(), solution) for _ in range(runs - 1))
        bad += more[: runs - 1]
        good += more[runs - 1 :]
        problem = _problem(task, bad, good, zero)
    if problem is not None:
        return Admission(False, problem[0], final=not problem[1])
    return Admission(
        admitted=True,
        failing=tuple(_failing(task, first)),
        seconds=statistics.median(verdict.seconds for verdict in good),
        report_bytes=max(len(verdict.to_json()) for verdict in (*bad, *good)),
    )


def _failing(task: Task, verdict: Verdict) -> list[str]:
    return [test for test in task.grading.expected if verdict.tests.get(test) != "passed"]


def _problem(task: Task, bad: Sequence[Verdict], good: Sequence[Verdict], zero: set[Status]) -> tuple[str, bool] | None:
    """(what is wrong, whether it is the machine), None if nothing is."""
    for verdict in (*bad, *good):
        if verdict.status is Status.INFRA_ERROR:
            return f"cannot be graded: {verdict.reason}"[:300], True
    for number, verdict in enumerate(bad, start=1):
        if verdict.status not in zero:
            return f"nothing done is {verdict.status} in grading {number}: {verdict.reason}"[:300], False
        if set(_failing(task, verdict)) != set(_failing(task, bad[0])):
            return f"flaky: nothing done fails other tests in grading {number}", False
    for number, verdict in enumerate(good, start=1):
        if verdict.status is not Status.PASSED:
            return f"the solution is {verdict.status} in grading {number}: {verdict.reason}"[:300], False
    return None
