"""Stage 2 of a step: the fan-out, all trials of a round in one Prefect task, each journaled as it ends."""

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from prefect import task

from harness.budgets import BudgetConfig
from harness.endpoint import Endpoint, EndpointConfig
from harness.proxy.server import ProxyServer
from harness.reaper import reaping
from harness.sandbox import SandboxConfig, require_isolation
from harness.sandbox.owner import owned_by
from harness.scaffolds.base import ScaffoldConfig
from harness.trial import TrialResult, TrialSpec, new_session_id, run_trial_with_retries
from tasks.draw import Group, groups_path, read_groups
from tasks.groups import due_within, task_group
from tasks.infra_limit import InfraLimit
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.served_policy import Served, as_told, served_policy
from tasks.trial_files import load_trial, store_trial
from tasks.trial_workers import Setup, WorkersConfig, trial_workers
from trainer.rollout import Outcome, Sampling
from trainer.serving.config import ServingConfig

Launch = Callable[[TrialSpec], Awaitable[TrialResult]]


@task(**staged("run_trials"))
async def run_trials(
    run: RunRef,
    label: str,
    step: int,
    model: Path,
    serving: ServingConfig,
    sampling: Sampling,
    sandbox: SandboxConfig,
    scaffold: ScaffoldConfig,
    budgets: BudgetConfig,
    concurrency: int,
    infra_attempts: int,
    refill: int = 0,
    endpoint: EndpointConfig | None = None,
    max_infra_share: float | None = None,
    step_timeout: float | None = None,
    workers: WorkersConfig = WorkersConfig(),  # noqa: B008  (frozen)
    plugins: Sequence[str] = (),
) -> dict[str, Any]:
    """Run the trials of a round that have not ended yet. Returns counts of outcomes and the seconds taken.

    Only those of the groups that the round began with, or of those that refill `refill` added. Policy weights must be
    those after step `step - 1`, or after `step` for an evaluation; the caller has synced them. With `endpoint` the
    policy is what it serves, and the run needs no replicas; where it tells no tokens, trials leave none.

    Raises:
        TooManyLost: more than `max_infra_share` of the trials were lost to infrastructure.
        StepOverdue: they take more than `step_timeout` seconds.
    """
    started = time.monotonic()
    require_isolation(sandbox)
    folder = run.journal.trials_dir(label)
    groups = read_groups(groups_path(run.journal.stage_dir(label), refill))
    ended = [load_trial(trial) for trial in run.journal.trials(label)]
    ids = {group.group_id for group in groups}
    outcomes = Counter(trial.outcome for trial in ended if trial.group_id in ids)
    missing = missing_trials(groups, Counter(trial.group_id for trial in ended))
    total = sum(group.attempts for group in groups)
    limit = asyncio.Semaphore(concurrency)
    lost = InfraLimit(run, label, groups, max_infra_share)

    async def one(group: Group, served: Served, launch: Launch) -> None:
        queued = time.monotonic()
        async with limit:
            spec = TrialSpec(
                new_session_id(group.task_id), group.group_id, group.task_id, group.task_path, step,
                greedily(sampling) if group.greedy else sampling, scaffold=group.scaffold,
                queue_seconds=time.monotonic() - queued,
            )  # fmt: skip
            result = await launch(spec)
            if result.outcome is Outcome.INFRA_ERROR:
                # a dead engine is no property of this trial: fail the stage, so that a restart runs the trial again
                await served.policy.require_serving()
            if isinstance(served.policy, Endpoint):
                as_told(result, served.policy)
            await asyncio.to_thread(store_trial, folder / result.spec.session_id, result)
            outcomes[result.outcome] += 1
            if result.outcome is Outcome.INFRA_ERROR:
                lost.lose(result.error)
            emit(Event("trials", label, done=sum(outcomes.values()), total=total))

    @asynccontextmanager
    async def launching(served: Served) -> AsyncIterator[Launch]:
        """What runs a trial: this process, or the workers; an endpoint counts here what it served."""
        if workers.per_node and endpoint is None:
            policy = partial(served_policy, run, model, serving, None)
            setup = Setup(run, policy, sandbox, scaffold, budgets, infra_attempts, plugins)
            async with trial_workers(setup, workers) as others:
                yield others.run
            return
        async with ProxyServer(served.policy, served.codec, served.window, tools=served.tools) as proxy:
            yield lambda spec: run_trial_with_retries(
                spec, proxy, sandbox, scaffold, budgets, attempts=infra_attempts
            )  # fmt: skip

    emit(Event("trials", label, done=total - len(missing), total=total))
    for trial in ended:
        if trial.group_id in ids and trial.outcome is Outcome.INFRA_ERROR:
            lost.lose(trial.record["error"])
    with owned_by(project=run.project, run=run.experiment):
        async with (
            due_within(step_timeout, lambda: f"{label}: {sum(outcomes.values())} of {total} trials have ended"),
            reaping(sandbox),
            served_policy(run, model, serving, endpoint) as served,
            launching(served) as launch,
            task_group() as trials,
        ):
            for group in missing:
                trials.create_task(one(group, served, launch))
    return {"outcomes": {str(outcome): outcomes[outcome] for outcome in Outcome}, "seconds": time.monotonic() - started}


def missing_trials(groups: Sequence[Group], ended: Mapping[str, int]) -> list[Group]:
    """One entry for each trial still to be run, by group: groups are keyed by id, trials within one are alike.

    `ended` counts the trials that each group has already.
    """
    return [group for group in groups for _ in range(group.attempts - ended.get(group.group_id, 0))]


def greedily(sampling: Sampling) -> Sampling:
    """The most likely token each time. Log-probs are then those at temperature 1; nothing is trained on them."""
    return dataclasses.replace(sampling, temperature=0.0, top_p=1.0)
