"""Before a run: the policy as a folder, the pools as indexes. Both are made once and checked every time."""

import asyncio
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from harness.pool.index import PoolError
from harness.pool.kata import build_pool
from harness.pool.task import Task
from harness.sandbox import SandboxConfig, require_isolation
from harness.scaffolds.base import ScaffoldConfig, find_scaffold
from tasks.config import DataConfig, RolloutConfig
from tasks.draw import read_pool
from tasks.progress import Event, emit
from tasks.run import RunRef
from trainer.model import ModelConfig, resolve_model


@task(name="prepare_model", cache_policy=NO_CACHE, retries=0)
async def prepare_model(run: RunRef, model: ModelConfig) -> Path:
    """The policy as a local Hugging Face folder."""
    emit(Event("note", "", f"policy: {model.path}"))
    return await asyncio.to_thread(resolve_model, model, run.root)


@task(name="prepare_pools", cache_policy=NO_CACHE, retries=0)
async def prepare_pools(run: RunRef, data: DataConfig, rollout: RolloutConfig) -> int:
    """Build the kata pool if the run uses it; check that indexes are readable and their tasks are tasks.

    Raises:
        PoolError: an index is missing or empty, or smaller than a step.
        TaskError: a task lacks tests or is malformed.
    """
    if data.needs_kata:
        await asyncio.to_thread(build_pool, run.root / "pools" / "kata")
    return await asyncio.to_thread(_check, run.root, data, rollout)


@task(name="prepare_sandbox", cache_policy=NO_CACHE, retries=0)
async def prepare_sandbox(sandbox: SandboxConfig, scaffold: ScaffoldConfig) -> None:
    """Make sure that trials can be isolated and that their agent is there, before anything slow starts.

    Raises:
        SandboxUnavailable: they cannot; the message names the mend.
        RuntimeMissing: the agent is not prepared on this machine.
    """
    await asyncio.to_thread(require_isolation, sandbox)
    find_scaffold(scaffold.name).require(scaffold)


def _check(root: Path, data: DataConfig, rollout: RolloutConfig) -> int:
    train, heldout = (read_pool(index, data.difficulty) for index in (data.train_index(root), data.heldout_index(root)))
    for pointer in (*train, *heldout):
        Task.load(pointer.task_path)
    if rollout.tasks_per_step > len(train):
        raise PoolError(
            f"rollout.tasks_per_step is {rollout.tasks_per_step}, but the training pool holds {len(train)} tasks"
        )
    emit(Event("note", "", f"pool: {len(train)} tasks to train on, {len(heldout)} held out"))
    return len(train)
