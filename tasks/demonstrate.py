"""Oracle demonstrations of a round: planned once, then run as trials whose policy is told what to answer."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from prefect import task

from harness.budgets import BudgetConfig
from harness.demonstrations import DemonstrationError, Oracle, demonstrate, find_demonstrator
from harness.pool.index import TaskPointer
from harness.pool.task import Task, TaskError
from harness.proxy.codec import codec_of
from harness.proxy.server import ProxyServer
from harness.reaper import reaping
from harness.sandbox import SandboxConfig
from harness.sandbox.owner import owned_by
from harness.scaffolds.base import ScaffoldConfig
from harness.trial import TrialResult, TrialSpec, new_session_id, run_trial
from tasks.draw import Group, as_groups, groups_path, groups_table, read_groups, read_pool, spread
from tasks.groups import task_group
from tasks.journal import write_json, write_table
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.trial_files import load_trial, store_trial
from trainer.rollout import Outcome, Sampling

LABEL = "demonstrations"
"""The round that demonstrations belong to."""

LEFT_OUT = "left_out.json"


class DemonstrationsLost(RuntimeError):
    """Infrastructure broke every demonstration: the machine is to blame, and none of them is taken for made."""


@task(**staged("plan_demonstrations"))
async def plan_demonstrations(
    run: RunRef, label: str, index: Path, difficulty: list[str], most: int | None, scaffold: ScaffoldConfig
) -> dict[str, int]:
    """Write groups.parquet: the tasks with a fix that the scaffold can make, evenly over the index, at most so many.

    What is left out is in left_out.json, with its reason.

    Raises:
        PoolError: the index cannot be used.
        DemonstrationError: no task of the index has a demonstration, or the scaffold has none at all.
    """
    folder = run.journal.stage_dir(label)
    find_demonstrator(scaffold.name)
    if not groups_path(folder).is_file():
        pointers = spread(read_pool(index, difficulty), most)
        kept, left_out = await asyncio.to_thread(_with_fixes, pointers, scaffold)
        if not kept:
            raise DemonstrationError(
                f"{index}: none of {len(pointers)} tasks has a demonstration for {scaffold.name}; the first: "
                f"{next(iter(left_out.values()))}"
            )
        write_json(folder / LEFT_OUT, left_out)
        write_table(groups_path(folder), groups_table(as_groups(kept, label, attempts=1)))
    return {"demonstrations": len(read_groups(groups_path(folder)))}


@task(**staged("run_demonstrations"))
async def run_demonstrations(
    run: RunRef,
    label: str,
    model: Path,
    window: int,
    max_tokens: int,
    sandbox: SandboxConfig,
    scaffold: ScaffoldConfig,
    budgets: BudgetConfig,
    concurrency: int,
    infra_attempts: int,
) -> dict[str, int]:
    """Run the demonstrations that have not ended, through the scaffold, its sandbox and the proxy. Returns outcomes.

    The model gives the tokenizer and chat template alone: nothing is sampled from it.

    Raises:
        DemonstrationsLost: none was left by the infrastructure; the next call makes them all again.
    """
    groups = read_groups(groups_path(run.journal.stage_dir(label)))
    ended = [load_trial(folder) for folder in run.journal.trials(label)]
    outcomes = Counter(trial.outcome for trial in ended)
    there = {trial.group_id for trial in ended}
    oracle = Oracle(codec := await asyncio.to_thread(codec_of, model))
    limit = asyncio.Semaphore(concurrency)
    lost: list[TrialResult] = []

    def store(result: TrialResult) -> None:
        store_trial(run.journal.trials_dir(label) / result.spec.session_id, result)

    async def one(group: Group, proxy: ProxyServer) -> None:
        async with limit:
            answers = demonstrate(Task.load(group.task_path), scaffold)
            for attempt in range(1, infra_attempts + 1):
                spec = TrialSpec(
                    new_session_id(group.task_id), group.group_id, group.task_id, group.task_path, 0,
                    Sampling(max_tokens=max_tokens), attempt, scaffold=group.scaffold,
                )  # fmt: skip
                oracle.teach(spec.session_id, answers)
                result = await run_trial(spec, proxy, sandbox, scaffold, budgets)
                if result.outcome is not Outcome.INFRA_ERROR:
                    break
            if result.outcome is Outcome.INFRA_ERROR:
                lost.append(result)
            else:
                await asyncio.to_thread(store, result)
            outcomes[result.outcome] += 1
            emit(Event("trials", label, done=sum(outcomes.values()), total=len(groups)))

    with owned_by(project=run.project, run=run.experiment):
        async with reaping(sandbox), ProxyServer(oracle, codec, window) as proxy, task_group() as trials:
            for group in groups:
                if group.group_id not in there:
                    trials.create_task(one(group, proxy))
    if lost and outcomes[Outcome.INFRA_ERROR] == outcomes.total():
        ((most, _),) = Counter(str(result.error) for result in lost).most_common(1)
        raise DemonstrationsLost(
            f"all {len(lost)} demonstrations were lost to infrastructure, most often: {most[:300]}; mend the machine "
            "(testgrad doctor), then the same command makes them"
        )
    for result in lost:
        await asyncio.to_thread(store, result)
    return {str(outcome): count for outcome, count in sorted(outcomes.items())}


def _with_fixes(pointers: list[TaskPointer], scaffold: ScaffoldConfig) -> tuple[list[TaskPointer], dict[str, Any]]:
    kept, left_out = [], {}
    for pointer in pointers:
        try:
            demonstrate(Task.load(pointer.task_path), scaffold)
        except (DemonstrationError, TaskError) as error:
            left_out[pointer.instance_id] = str(error)
        else:
            kept.append(pointer)
    return kept, left_out
