"""Whether a sandbox backend does what a run needs: found by trials, with the solution in the place of an agent."""

import asyncio
import time
from dataclasses import dataclass

from harness.budgets import BudgetConfig
from harness.grading import grade_with_retries
from harness.patch import Patch, take_patch
from harness.pool.snapshot import upload_snapshot
from harness.pool.task import Task
from harness.sandbox import SandboxConfig, SandboxError, SandboxUnavailable, require_isolation
from harness.sandbox.guard import guarded
from harness.sandbox.owner import owned_by
from harness.verifier import Status, Verdict, VerifierConfig, protected_paths

_EXEC_SECONDS = 30.0


@dataclass(frozen=True)
class Checkup:
    """How a backend did. `missing`: it cannot be used here, for this reason; `problems`: it can, and must not be."""

    backend: str
    seconds: float
    missing: str = ""
    problems: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        return not self.missing and not self.problems


async def check_backend(
    task: Task,
    config: SandboxConfig,
    verifier: VerifierConfig = VerifierConfig(),  # noqa: B008  (frozen)
    budgets: BudgetConfig = BudgetConfig(),  # noqa: B008  (frozen)
) -> Checkup:
    """Try `task` twice on the configured backend: nothing done must score 0, its solution must score 1."""
    began = time.monotonic()
    problems = []
    try:
        with owned_by(run="doctor"):
            await asyncio.to_thread(require_isolation, config)
            for solved, wanted in ((False, 0.0), (True, 1.0)):
                patch, complaint = await _work(task, solved, config, budgets)
                if complaint:
                    problems.append(complaint)
                verdict = await grade_with_retries(task, patch, config, verifier, budgets, attempts=1, trial="doctor")
                problems += _judge(verdict, solved, wanted)
    except SandboxUnavailable as error:
        return Checkup(config.backend, time.monotonic() - began, missing=str(error))
    except SandboxError as error:
        problems.append(f"it breaks: {error}")
    return Checkup(config.backend, time.monotonic() - began, problems=tuple(dict.fromkeys(problems)))


async def _work(task: Task, solved: bool, config: SandboxConfig, budgets: BudgetConfig) -> tuple[Patch, str]:
    """The patch of a trial that does nothing, or that writes the solution; and what is wrong with its sandbox."""
    assert task.solution is not None, "the sample has one"
    with owned_by(trial="doctor"):
        async with guarded(config, hang_sec=budgets.setup_sec, stop_sec=budgets.stop_sec) as sandbox:
            await upload_snapshot(task.snapshot, sandbox)
            if solved:
                await sandbox.upload(task.solution)
            seen = await sandbox.exec([sandbox.python, "-c", _LOOK], timeout=_EXEC_SECONDS)
            patch = await take_patch(task.snapshot, sandbox, protected_paths(task))
    complaint = ""
    if seen.exit_code != 0:
        complaint = f"a command fails: {seen.stderr.decode(errors='replace').strip()[-300:] or seen.exit_code}"
    elif seen.stdout.strip() != b"lo":
        complaint = f"commands have a network: {seen.stdout.decode(errors='replace').strip()[:300]}"
    return patch, complaint


_LOOK = """\
import os, socket
assert os.path.isfile("solution.py"), "the snapshot is not there"
assert os.getuid() != 0, "commands run as root"
print(*sorted(name for _, name in socket.if_nameindex()))
"""


def _judge(verdict: Verdict, solved: bool, wanted: float) -> list[str]:
    what = "the solution" if solved else "nothing done"
    if verdict.status is Status.INFRA_ERROR:
        return [f"{what} cannot be graded: {verdict.reason}"]
    if verdict.reward != wanted:
        return [f"{what} scores {verdict.reward:.0f} instead of {wanted:.0f}: {verdict.status}, {verdict.reason}"]
    return []
