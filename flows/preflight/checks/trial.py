"""One task of the pool, for real: nothing done must score 0, the solution 1."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok, warn
from flows.preflight.registry import Cost, check
from harness.grading import grade_with_retries
from harness.patch import Patch
from harness.pool.sample import sample_task
from harness.pool.task import Task, TaskError
from harness.sandbox import SandboxError
from harness.sandbox.guard import finish_stops
from harness.sandbox.owner import owned_by
from harness.verifier import Status, Verdict


@check("trial", Cost.TRIAL)
def trial(facts: Facts) -> Iterator[Finding]:
    """The grading that rewards come from, tried at its two ends."""
    with tempfile.TemporaryDirectory(prefix="testgrad-check-") as folder:
        task = _choose(facts)
        if task is None:
            task = sample_task(Path(folder) / "task")
            why = "no task of it ships a solution" if facts.train_pool.rows else "its tasks cannot be read yet"
            yield warn(
                "data.train",
                facts.config.data.train,
                f"{why}, so that one of the package is tried",
                "check again with tasks that have solutions",
            )
        try:
            verdicts = asyncio.run(_grade_both(facts, task))
        except SandboxError as error:
            yield fatal(
                "sandbox.backend", facts.config.sandbox.backend, f"a trial breaks: {error}", "see testgrad doctor"
            )
            return
    for what, wanted, verdict in zip(("nothing done", "the solution"), (0.0, 1.0), verdicts, strict=True):
        yield _judged(task, what, wanted, verdict)


def _choose(facts: Facts) -> Task | None:
    """The first task with a solution among the first of the pool."""
    for row in facts.train_pool.rows[:32]:
        try:
            task = Task.load(row.task_path)
        except TaskError:  # told by the check of the indexes
            continue
        if task.solution is not None:
            return task
    return None


async def _grade_both(facts: Facts, task: Task) -> list[Verdict]:
    config = facts.config
    with owned_by(project=config.project, run="check"):
        verdicts = [
            await grade_with_retries(
                task, Patch(changes or {}), config.sandbox, config.verifier, config.budgets, attempts=1, trial="check"
            )
            for changes in ({}, task.solution_changes())
        ]
        await finish_stops()
    return verdicts


def _judged(task: Task, what: str, wanted: float, verdict: Verdict) -> Finding:
    if verdict.status is Status.INFRA_ERROR:
        return fatal("data.train", task.task_id, f"{what} cannot be graded: {verdict.reason}", "see testgrad doctor")
    if verdict.reward != wanted:
        return fatal(
            "data.train",
            task.task_id,
            f"{what} scores {verdict.reward:g} instead of {wanted:g}: {verdict.status}, {verdict.reason}",
            "raise verifier.timeout_sec and verifier.memory_bytes, or take the task out",
        )
    return ok("data.train", task.task_id, f"{what} scores {wanted:g}, in {verdict.seconds:.1f} s")
