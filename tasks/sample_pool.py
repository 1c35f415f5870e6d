"""Stage 1 of a step: draw the tasks to be tried, and fresh ones where too few of them carry a signal."""

import asyncio

from prefect import task

from harness.pool.sampler import SamplerConfig, draw_tasks
from tasks.assemble_batch import select_rollouts
from tasks.config import DataConfig, EvaluationConfig, FilterConfig, RolloutConfig
from tasks.draw import (
    Group,
    as_groups,
    draw_refill,
    groups_path,
    groups_table,
    read_draws,
    read_groups,
    read_pool,
    spread,
)
from tasks.journal import write_table
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.reward import RewardConfig
from tasks.run import RunRef
from tasks.sampler_state import state_before


@task(**staged("sample_pool", timeout=300))
async def sample_pool(
    run: RunRef,
    label: str,
    step: int,
    data: DataConfig,
    rollout: RolloutConfig,
    greedy: bool = False,
    sampler: SamplerConfig = SamplerConfig(),  # noqa: B008  (frozen)
) -> int:
    """Write groups.parquet of a training step, with a greedy trial for each group if the algorithm needs one.

    Returns the number of trials it asks for.
    """
    pool = read_pool(data.train_index(run.root), data.difficulty)
    state = await asyncio.to_thread(state_before, run, step, sampler)
    tasks = draw_tasks(pool, rollout.tasks_per_step, step, data.seed, sampler, state, rollout.attempts_per_task)
    return _write_once(run, label, as_groups(tasks, label, rollout.attempts_per_task, greedy))


@task(**staged("refill_pool", timeout=600))
async def refill_pool(
    run: RunRef,
    label: str,
    step: int,
    refill: int,
    data: DataConfig,
    rollout: RolloutConfig,
    filters: FilterConfig,
    reward: RewardConfig,
    greedy: bool = False,
    by_name: bool = False,
) -> int:
    """Draw a fresh task for each group that a step lacks, now that all its trials so far are graded.

    The draw is decided from the journal alone, and stands once it is written. Returns the number of trials it asks for:
    0 if enough groups carry a signal, or no task is left that the step has not tried.

    Args:
        refill: Which draw, from 1.
        by_name: Whether the algorithm tells named rewards apart.
    """
    folder = run.journal.stage_dir(label)
    if groups_path(folder, refill).is_file():
        return _write_once(run, label, [], refill)
    chosen = await asyncio.to_thread(select_rollouts, run, label, filters, reward, by_name)
    tried = {group.task_id for groups in read_draws(folder) for group in groups}
    pool = read_pool(data.train_index(run.root), data.difficulty)
    tasks = draw_refill(pool, tried, chosen.accepted, rollout.tasks_per_step, step, refill, data.seed)
    if not tasks:
        return 0
    text = f"step {step}: {chosen.accepted} of {rollout.tasks_per_step} groups carry a signal; "
    emit(Event("note", "", f"{text}trying {len(tasks)} more tasks"))
    return _write_once(run, label, as_groups(tasks, label, rollout.attempts_per_task, greedy), refill)


@task(**staged("sample_heldout", timeout=300))
async def sample_heldout(run: RunRef, label: str, data: DataConfig, evaluation: EvaluationConfig) -> int:
    """Write groups.parquet of an evaluation. Returns the number of trials it asks for."""
    pool = read_pool(data.heldout_index(run.root), data.difficulty)
    return _write_once(run, label, as_groups(spread(pool, evaluation.max_tasks), label, evaluation.attempts_per_task))


def _write_once(run: RunRef, label: str, groups: list[Group], refill: int = 0) -> int:
    """Write groups, unless they are journaled already: their trials may have ended. Returns the number of trials."""
    path = groups_path(run.journal.stage_dir(label), refill)
    if not path.is_file():
        write_table(path, groups_table(groups))
    return sum(group.attempts for group in read_groups(path))
