"""Admission of an index's tasks on the backend that trials will use, each in the image that it names."""

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.pool.admission import Admission, Judge, admit, first_look, judge_in
from harness.pool.environment import sandbox_for
from harness.pool.importers.harbor import folder_digest
from harness.pool.index import TaskPointer
from harness.pool.lines import Lines
from harness.pool.releases import LOOK, installed, later_release_problems
from harness.pool.task import Task, TaskError
from harness.pool.together import together
from harness.sandbox import SandboxConfig, SandboxError, create_sandbox
from harness.verifier import GRADERS, Status, VerifierConfig
from harness.verifier.graders.runner import OLDEST_PYTHON

_LOOK_SECONDS = 60.0


@dataclass(frozen=True)
class ProofConfig:
    """How tasks are proven. Without `verifier` a grading gets the task's own time."""

    sandbox: SandboxConfig
    verifier: VerifierConfig | None = None
    runs: int = 3
    workers: int = 2


async def prove_tasks(
    rows: Sequence[TaskPointer],
    config: ProofConfig,
    record: Path,
    progress: Callable[[int], None] = lambda done: None,
) -> list[tuple[TaskPointer, Admission]]:
    """The rows with whether they may enter a pool, in order; those that may tell `grading_seconds` and `report_bytes`.

    Answers are kept in the file `record`, by the content of the task and all that they depend on: a run that was killed
    goes on where it stopped, and what has not changed is not graded again. `progress` is told how many are done.

    Raises:
        UnfitTask: the backend cannot run a task's image.
    """
    judge = judge_in(config.sandbox, asyncio.Semaphore(config.workers), config.verifier)
    opened = asyncio.Semaphore(config.workers)  # tasks in work: the first are done before the last are begun
    answers = Lines(record)
    done = 0

    async def one(row: TaskPointer) -> tuple[TaskPointer, Admission]:
        nonlocal done
        async with opened:
            answer = await _prove(row, config, judge, answers)
        done += 1
        progress(done)
        if not answer.admitted:
            return row, answer
        facts = {"grading_seconds": round(answer.seconds, 2), "report_bytes": answer.report_bytes}
        return dataclasses.replace(row, extra=row.extra | facts), answer

    try:
        return await together(map(one, rows))
    finally:
        answers.close()


async def _prove(row: TaskPointer, config: ProofConfig, judge: Judge, answers: Lines) -> Admission:
    try:
        task = await asyncio.to_thread(Task.load, row.task_path)
    except TaskError as error:
        return Admission(False, str(error), final=False)
    content = await asyncio.to_thread(folder_digest, row.task_path)
    key = hashlib.sha256(f"{content} {config.sandbox!r} {config.verifier!r} {config.runs}".encode()).hexdigest()[:32]
    stored = answers.values.get(key)
    if stored is not None:
        return Admission(**stored | {"failing": tuple(stored["failing"])})
    answer = await _answer(task, config, judge)
    if answer.final:
        answers.put(key, dataclasses.asdict(answer))
    return answer


async def _answer(task: Task, config: ProofConfig, judge: Judge) -> Admission:
    if task.environment.image is not None and config.sandbox.task_images:
        try:
            if problem := await _image_problem(task, sandbox_for(task, config.sandbox)):
                return Admission(False, problem)
        except SandboxError as error:
            return Admission(False, f"cannot be run: {error}", final=False)
    first, _ = await first_look(task, judge)
    if first.status is Status.INFRA_ERROR:
        return Admission(False, f"cannot be graded: {first.reason}"[:300], final=False)
    return await admit(task, first, config.runs, judge, may_break=True)


async def _image_problem(task: Task, sandbox: SandboxConfig) -> str:
    """Why the task's image will not do: its interpreter, or another release of the package in it; empty if it will."""
    async with create_sandbox(sandbox) as started:
        result = await started.exec([started.project_python, "-I", "-c", LOOK], timeout=_LOOK_SECONDS)
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip()[-200:]
        return f"the image's {sandbox.project_python or 'python'} cannot be run: {said or result.exit_code}"
    try:
        version, entries = installed(result.stdout)
    except ValueError as error:
        return str(error)
    kind = task.grading.report
    if GRADERS[kind].protected and version < OLDEST_PYTHON:
        return f"the image's Python is {version[0]}.{version[1]}, and grading kind {kind} needs 3.9"
    return next(iter(later_release_problems(task.snapshot, entries)), "")
