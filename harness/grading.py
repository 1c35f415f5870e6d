"""Grading that survives a broken machine: in bounded time, tried again, and never a way out of a bad reward."""

import asyncio
import dataclasses
import functools
import logging
import time

from harness.budgets import BudgetConfig, outliving
from harness.patch import Patch
from harness.pool.task import Task, TaskError
from harness.sandbox.base import SandboxConfig
from harness.sandbox.guard import guarded, outlast
from harness.sandbox.owner import owned_by
from harness.sandbox.tree import WorkspaceError
from harness.verifier import GradingError, Status, Verdict, VerifierConfig, grade

_log = logging.getLogger(__name__)


async def grade_with_retries(
    task: Task,
    patch: Patch,
    sandbox: SandboxConfig,
    verifier: VerifierConfig,
    budgets: BudgetConfig = BudgetConfig(),  # noqa: B008  (frozen)
    *,
    attempts: int = 3,
    trial: str | None = None,
) -> Verdict:
    """The first verdict that is no `infra_error`, or the last.

    When no attempt came to a verdict while the untouched snapshot gets one, both before and after a further attempt,
    then it is the patch that breaks its grading: `broken`, reward 0. `trial` names the trial on what is made for it.

    Raises:
        GradingError: the task asks for a way of grading that does not exist.
        UnfitTask: it needs an image that the configured backend cannot run.
        WorkspaceError: the task's snapshot cannot be copied.
    """
    if attempts < 1:
        raise ValueError(f"attempts is {attempts}; a grading needs at least one")
    began = time.monotonic()
    with owned_by(trial=trial):
        for failures in range(attempts):
            if failures:
                await asyncio.sleep(budgets.pause(failures))
            verdict = await _grade_in_time(task, patch, sandbox, verifier, budgets)
            if verdict.status is not Status.INFRA_ERROR:
                return verdict
            _log.warning("%s: grading attempt %d: infra_error: %s", task.task_id, failures + 1, verdict.reason)
        if await _snapshot_is_gradable(task, sandbox, verifier, budgets):
            verdict = await _grade_in_time(task, patch, sandbox, verifier, budgets)
            if verdict.status is Status.INFRA_ERROR and await _snapshot_is_gradable(task, sandbox, verifier, budgets):
                reason = f"the patch breaks its grading each time, the untouched snapshot does not: {verdict.reason}"
                verdict = dataclasses.replace(verdict, status=Status.BROKEN, reason=reason)
    return dataclasses.replace(verdict, seconds=time.monotonic() - began)


async def _snapshot_is_gradable(
    task: Task, sandbox: SandboxConfig, verifier: VerifierConfig, budgets: BudgetConfig
) -> bool:
    verdict = await _grade_in_time(task, Patch(), sandbox, verifier, budgets)
    return verdict.status is not Status.INFRA_ERROR


async def _grade_in_time(
    task: Task, patch: Patch, sandbox: SandboxConfig, verifier: VerifierConfig, budgets: BudgetConfig
) -> Verdict:
    """One verdict; `infra_error` also when the grading does not end, or ends with an error of the machine."""
    limit = budgets.grading_limit(task, verifier)
    began = time.monotonic()
    create = functools.partial(guarded, hang_sec=budgets.hang_sec, stop_sec=budgets.stop_sec)
    lasting = outliving(sandbox, limit)
    grading = asyncio.create_task(grade(task, patch, lasting, verifier, create=create))
    try:
        await asyncio.wait({grading}, timeout=limit)
    finally:
        ended = grading.done()
        grading.cancel()
        cancelled = await outlast(grading, budgets.stop_sec)
    if cancelled:
        raise asyncio.CancelledError
    if not ended:
        reason = f"the grading did not end within {limit:.0f} s"
    elif grading.cancelled():
        reason = "the grading cancelled itself"
    elif (error := grading.exception()) is None:
        return grading.result()
    elif isinstance(error, GradingError | TaskError | WorkspaceError):
        raise error  # a task that cannot be graded, now or later
    else:
        reason = f"{type(error).__name__}: {error}"
    return Verdict(0.0, Status.INFRA_ERROR, reason, seconds=time.monotonic() - began)
