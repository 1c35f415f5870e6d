"""Stage 2 of a step: the fan-out, all trials of a round in one Prefect task, each journaled as it ends."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import task

from harness.budgets import BudgetConfig
from harness.endpoint import EndpointConfig
from harness.sandbox import SandboxConfig
from harness.scaffolds.base import ScaffoldConfig
from tasks.draw import Group, groups_path, read_groups
from tasks.fan_out import FanOut, fan_out
from tasks.groups import due_within, task_group
from tasks.infra_limit import InfraLimit
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.trial_files import load_trial
from tasks.trial_workers import WorkersConfig
from trainer.rollout import Outcome, Sampling
from trainer.serving.config import ServingConfig


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
    folder = run.journal.trials_dir(label)
    groups = read_groups(groups_path(run.journal.stage_dir(label), refill))
    ended = [load_trial(trial) for trial in run.journal.trials(label)]
    ids = {group.group_id for group in groups}
    outcomes = Counter(trial.outcome for trial in ended if trial.group_id in ids)
    missing = missing_trials(groups, Counter(trial.group_id for trial in ended))
    total = sum(group.attempts for group in groups)
    lost = InfraLimit(run, label, groups, max_infra_share)

    async def one(group: Group, fan: FanOut) -> None:
        result = await fan.run(group, step, folder)
        outcomes[result.outcome] += 1
        if result.outcome is Outcome.INFRA_ERROR:
            lost.lose(result.error)
        emit(Event("trials", label, done=sum(outcomes.values()), total=total))

    emit(Event("trials", label, done=total - len(missing), total=total))
    for trial in ended:
        if trial.group_id in ids and trial.outcome is Outcome.INFRA_ERROR:
            lost.lose(trial.record["error"])
    async with (
        due_within(step_timeout, lambda: f"{label}: {sum(outcomes.values())} of {total} trials have ended"),
        fan_out(
            run, model, serving, sampling, sandbox, scaffold, budgets, concurrency, infra_attempts,
            endpoint, workers, plugins,
        ) as fan,
        task_group() as trials,
    ):  # fmt: skip
        for group in missing:
            trials.create_task(one(group, fan))
    return {"outcomes": {str(outcome): outcomes[outcome] for outcome in Outcome}, "seconds": time.monotonic() - started}


def missing_trials(groups: Sequence[Group], ended: Mapping[str, int]) -> list[Group]:
    """One entry for each trial still to be run, by group: groups are keyed by id, trials within one are alike.

    `ended` counts the trials that each group has already.
    """
    return [group for group in groups for _ in range(group.attempts - ended.get(group.group_id, 0))]
