"""Stage 3 of a step: grade each trial as it ends. Depends on task and patch alone, so it can be repeated by itself."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

from prefect import task

from harness.budgets import BudgetConfig
from harness.grading import grade_with_retries
from harness.pool.task import Task
from harness.sandbox import SandboxConfig
from harness.sandbox.owner import owned_by
from harness.verifier import Status, VerifierConfig
from harness.verifier.verdict import Verdict
from tasks.draw import groups_path, read_draws, read_groups
from tasks.groups import task_group
from tasks.infra_limit import InfraLimit
from tasks.journal import JournalError
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.trial_files import StoredTrial, load_trial, store_verdict
from trainer.rollout import Outcome

POLL_SECONDS = 0.1
RESTS = 10
"""Times as long as a look at the journal took until the next one: that of thousands of trials takes a while."""


@task(**staged("verify_trials"))
async def verify_trials(
    run: RunRef,
    label: str,
    sandbox: SandboxConfig,
    verifier: VerifierConfig,
    budgets: BudgetConfig,
    infra_attempts: int,
    refill: int = 0,
    max_infra_share: float | None = None,
) -> dict[str, Any]:
    """Grade the trials of a round until all of them are. Returns counts of verdicts and the busy seconds.

    Only those of the groups that the round began with, or of those that refill `refill` added. The journal is the
    channel: a trial counts as soon as its trial.json is there, whoever runs it. Trials that ended in `infra_error` have
    nothing to grade.

    Raises:
        TooManyLost: more than `max_infra_share` of the gradings were lost to infrastructure.
    """
    draws = read_draws(run.journal.stage_dir(label))
    known = {group.group_id for groups in draws for group in groups}
    tasks = {group.group_id: group.task_path for group in draws[refill]}
    expected = sum(group.attempts for group in draws[refill])
    statuses: Counter[str] = Counter()
    seen: set[Path] = set()
    ended = 0
    busy = 0.0
    lost = InfraLimit(run, label, draws[refill], max_infra_share, "gradings")

    async def one(trial: StoredTrial) -> None:
        nonlocal busy
        if trial.outcome is Outcome.INFRA_ERROR:
            return
        started = time.monotonic()
        verdict = await graded(trial, tasks[trial.group_id], sandbox, verifier, budgets, infra_attempts)
        busy += time.monotonic() - started
        statuses[str(verdict.status)] += 1
        if verdict.status is Status.INFRA_ERROR:
            lost.lose(verdict.reason)
        emit(Event("verdicts", label, done=sum(statuses.values()), total=expected, data=dict(statuses)))

    with owned_by(project=run.project, run=run.experiment):
        async with task_group() as gradings:
            while ended < expected:
                began = time.monotonic()
                folders = await asyncio.to_thread(run.journal.trials, label)
                rest = RESTS * (time.monotonic() - began)
                for folder in folders:
                    if folder in seen:
                        continue
                    seen.add(folder)
                    trial = await asyncio.to_thread(load_trial, folder)
                    if trial.group_id not in known:
                        raise JournalError(f"{folder}: group {trial.group_id!r} is none of this round's")
                    if trial.group_id in tasks:
                        ended += 1
                        gradings.create_task(one(trial))
                await asyncio.sleep(max(POLL_SECONDS, rest))
    return {"verdicts": dict(statuses), "busy_seconds": busy}


def all_graded(run: RunRef, label: str, refill: int = 0) -> bool:
    """Whether all trials that the round began with, or that refill `refill` added, have ended and have a verdict."""
    groups = read_groups(groups_path(run.journal.stage_dir(label), refill))
    ids = {group.group_id for group in groups}
    ended = [trial for trial in map(load_trial, run.journal.trials(label)) if trial.group_id in ids]
    return len(ended) == sum(group.attempts for group in groups) and all(
        trial.outcome is Outcome.INFRA_ERROR or trial.verdict is not None for trial in ended
    )


async def graded(
    trial: StoredTrial,
    task_path: Path,
    sandbox: SandboxConfig,
    verifier: VerifierConfig,
    budgets: BudgetConfig,
    attempts: int,
) -> Verdict:
    """The verdict on a trial that left a patch: the journaled one, or a new one, which is journaled."""
    if trial.verdict is not None:
        return trial.verdict
    verdict = await grade_with_retries(
        Task.load(task_path), trial.patch(), sandbox, verifier, budgets, attempts=attempts, trial=trial.session_id
    )
    await asyncio.to_thread(store_verdict, trial.folder, verdict)
    return verdict
