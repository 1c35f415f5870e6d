"""Before the first step: the learner and the replicas, side by side; after the last: both gone."""

import asyncio
import time
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.keep_replicas import stop_keeping
from tasks.progress import Event, emit
from tasks.reattach import claim, end_unfit, owns
from tasks.run import RunRef
from tasks.wanted_replicas import wanted_replicas
from trainer.algorithms.config import AlgorithmConfig
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup
from trainer.ownership import forget_owner
from trainer.placement import find_numbered
from trainer.serving.colocated import check_colocation
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool


@task(name="start_engines", cache_policy=NO_CACHE, retries=1, retry_delay_seconds=5)
async def start_engines(
    run: RunRef,
    model: Path,
    serving: ServingConfig,
    learner: LearnerConfig,
    algorithm: AlgorithmConfig,
    plugins: list[str],
) -> None:
    """Boot learner and replicas, or find those that are up and well.

    Raises:
        EnginesTaken: a living run in another folder has engines of this name.
    """
    started = time.monotonic()
    await claim(run)
    await end_unfit(run, model, serving, learner, algorithm)
    emit(Event("note", "", "starting the learner (DeepSpeed ZeRO-3) and the engine (vLLM)"))
    ranks = LearnerGroup.start(run.name, model, learner, algorithm, plugins)
    if serving.colocated:
        await _start_in_turn(run, model, serving, learner, await ranks)
    else:
        wanted = wanted_replicas(run, serving)
        if wanted != serving.replicas:
            emit(Event("note", "", f"{wanted} replicas were asked for, serving.replicas is {serving.replicas}"))
        _, pool = await asyncio.gather(
            ranks,
            ReplicaPool.start(run.name, model, serving, learner.gpus_per_rank, run.engine_log_file, wanted=wanted),
        )
        if len(pool.actors) < wanted:
            lacking = wanted - len(pool.actors)
            emit(
                Event("note", "", f"the cluster has no room for {lacking} of {wanted} replicas: the run starts without")
            )
    emit(Event("note", "", f"engines are up after {time.monotonic() - started:.0f} s"))


async def _start_in_turn(
    run: RunRef, model: Path, serving: ServingConfig, learner: LearnerConfig, ranks: LearnerGroup
) -> None:
    """Boot the replicas where the ranks are, which leave the GPUs first: vLLM claims its share of them at boot."""
    check_colocation(serving, learner)
    if not find_numbered(f"{run.name}/replica") and await ranks.resident():
        await ranks.offload()
    devices = await ranks.devices()
    await ReplicaPool.start(run.name, model, serving, learner.gpus_per_rank, run.engine_log_file, devices)


async def stop_engines(run: RunRef) -> None:
    """Stop what is up and the run's own; safe when nothing is."""
    await stop_keeping(run.name)
    if not owns(run):
        return
    if find_numbered(f"{run.name}/replica"):
        await ReplicaPool.attach(run.name).shutdown()
    ranks = find_numbered(f"{run.name}/learner")
    if ranks:
        LearnerGroup(run.name, list(ranks.values())).shutdown()
    forget_owner(run.name)
