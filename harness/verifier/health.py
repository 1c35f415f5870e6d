"""Whether the grading of a task works at all, asked when a patch has broken it.

Without this a policy could choose between 0 and being left out, by breaking its grading; and a grader that is broken
for everyone would teach that every patch is worth 0. A yes is remembered, so that it costs one run per task, not one
per broken patch.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from weakref import WeakKeyDictionary

from harness.patch import Patch
from harness.pool.task import Task
from harness.verifier.report import Judgement
from harness.verifier.verdict import Status

Run = Callable[[Patch], Awaitable[tuple[Judgement, str]]]

_healthy: set[tuple[Path, str]] = set()
_locks: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, asyncio.Lock]]" = WeakKeyDictionary()


async def grading_works(task: Task, settings: str, run: Run) -> str:
    """What is wrong with the grading of `task` under `settings`, found by grading its solution; empty if it works.

    A task without a solution is graded as it stands, and works if its tests come to an end, whatever they say.
    """
    lock = _locks.setdefault(asyncio.get_running_loop(), {}).setdefault(task.path, asyncio.Lock())
    async with lock:  # the others that broke it meanwhile wait for this answer
        if (task.path, settings) in _healthy:
            return ""
        solution = await asyncio.to_thread(_solution, task)
        judgement, _ = await run(solution or Patch())
        if solution is None:
            problem = "" if not judgement.repeat else f"the tests of the unchanged snapshot break: {judgement.reason}"
        else:
            passed = judgement.status is Status.PASSED
            problem = "" if passed else f"the task's own solution is {judgement.status}: {judgement.reason}"
        if not problem:
            _healthy.add((task.path, settings))
        return problem


def _solution(task: Task) -> Patch | None:
    changes = task.solution_changes()
    return None if changes is None else Patch(changes)
