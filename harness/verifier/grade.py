"""Grading: the patch, in a fresh sandbox, under the hidden tests; the verdict is computed here, on the host."""

import asyncio
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.patch import Patch, apply, filter_patch
from harness.pool.environment import sandbox_for
from harness.pool.snapshot import upload_snapshot
from harness.pool.task import Task
from harness.sandbox import ExecResult, Sandbox, SandboxConfig, SandboxError, WorkspaceError, create_sandbox
from harness.verifier.config import CONFIRMATIONS, VerifierConfig
from harness.verifier.graders import GRADERS, Grader, GradingError
from harness.verifier.health import grading_works
from harness.verifier.hidden import protected_paths
from harness.verifier.report import Judgement
from harness.verifier.verdict import Status, Verdict

Create = Callable[[SandboxConfig], Sandbox]


async def grade(
    task: Task,
    patch: Patch,
    config: SandboxConfig,
    verifier: VerifierConfig,
    *,
    create: Create = create_sandbox,
) -> Verdict:
    """Judge `patch` by the hidden tests of `task`, in sandboxes that `create` makes.

    Whatever the patch does to its grading, reward 0 is the most it gets. Where few tests have sentinels, a pass counts
    only if it can be repeated, since it might be a lucky guess (`VerifierConfig.guess_odds`). `infra_error` is
    returned, not raised: no sandbox could be made, or the grading breaks on the task's own solution as well.

    Raises:
        GradingError: the task asks for a way of grading that does not exist here.
        UnfitTask: it needs an image that the configured backend cannot run.
        WorkspaceError: the task's snapshot cannot be copied.
    """
    kind = _grader(task)
    setting = _Setting(_grading_config(sandbox_for(task, config), verifier), verifier, create)
    started = time.monotonic()
    patch = await asyncio.to_thread(filter_patch, patch, task.snapshot, protected_paths(task))
    runs = passes = 0
    luck = 1.0
    while True:
        runs += 1
        judgement, log = await _run(task, patch, setting)
        if judgement.status is Status.PASSED:
            passes += 1
            luck *= judgement.odds
            if luck <= verifier.guess_odds or judgement.odds == 1.0 or passes > CONFIRMATIONS:
                break
        elif not judgement.repeat or runs - passes > verifier.retries:
            break
    if passes and judgement.status is Status.FAILED:
        reason = f"it passed, but not again under other sentinels: {judgement.reason}"
        judgement = dataclasses.replace(judgement, reason=reason)
    if judgement.status is Status.BROKEN:
        problem = await grading_works(task, f"{config!r} {verifier!r}", lambda known: _run(task, known, setting))
        if problem:
            judgement = Judgement(Status.INFRA_ERROR, f"{problem}; the patch: {judgement.reason}", judgement.tests)
    return Verdict(
        reward=1.0 if judgement.status is Status.PASSED else 0.0,
        status=judgement.status,
        reason=judgement.reason,
        tests=dict(judgement.tests),
        seconds=time.monotonic() - started,
        log=log,
        runs=runs,
        grader=task.grading.report,
        protected=kind.protected,
    )


def _grader(task: Task) -> type[Grader]:
    kind = task.grading.report
    if kind not in GRADERS:
        known = ", ".join(sorted(GRADERS))
        raise GradingError(f"{task.task_id}: metadata.report {kind!r} has no grader; choose one of: {known}")
    return GRADERS[kind]


@dataclass(frozen=True)
class _Setting:
    """What all runs of one grading share. `config` has the tests' limits."""

    config: SandboxConfig
    verifier: VerifierConfig
    create: Create


async def _run(task: Task, patch: Patch, setting: _Setting) -> tuple[Judgement, str]:
    """One run of the tests in a sandbox of its own; its judgement, and what people look at to understand it."""
    try:
        return await _run_in_sandbox(task, patch, setting)
    except SandboxError as error:
        return Judgement(Status.INFRA_ERROR, str(error), repeat=True), ""


async def _run_in_sandbox(task: Task, patch: Patch, setting: _Setting) -> tuple[Judgement, str]:
    grader = _grader(task)(task)
    limit = min(setting.verifier.timeout_sec, task.verifier_timeout)
    async with setting.create(setting.config) as sandbox:
        await asyncio.gather(asyncio.to_thread(grader.prepare), upload_snapshot(task.snapshot, sandbox))
        try:
            await apply(patch, sandbox)
            judgement, result = await grader.run(sandbox, limit)
        except WorkspaceError as error:
            return Judgement(Status.BROKEN, f"the patch cannot be applied: {error}"), ""
    return judgement, _log(judgement, result, setting.verifier.log_bytes)


def _grading_config(config: SandboxConfig, verifier: VerifierConfig) -> SandboxConfig:
    return config.model_copy(
        update={
            "memory_bytes": verifier.memory_bytes,
            "cpu_seconds": verifier.cpu_seconds,
            "processes": verifier.processes,
            "output_bytes": max(config.output_bytes, 4 << 20),  # the whole report must come through
        }
    )


def _log(judgement: Judgement, result: ExecResult, limit: int) -> str:
    """The end of the tests' output, then the tests that did not pass."""
    details = "".join(f"{name}: {text}\n" for name, text in judgement.details.items())
    output = result.stderr[-limit:].decode(errors="replace")
    return f"{output}\n{details}"[-limit:].strip()
