"""One RL step: sample tasks, run trials, grade, advantages, update, sync."""

import asyncio
import time
from pathlib import Path
from typing import Any

from prefect import flow

from flows.open_run import read_run_config
from tasks.assemble_batch import assemble_batch
from tasks.compute_advantages import compute_advantages
from tasks.journal import step_label
from tasks.progress import Event, emit
from tasks.record_step import record_step
from tasks.run import RunRef
from tasks.run_trials import run_trials
from tasks.sample_pool import sample_pool
from tasks.sync_weights import sync_weights
from tasks.update_policy import update_policy
from tasks.verify_trials import verify_trials


@flow(name="rl-step", flow_run_name="step-{step}", persist_result=True, result_serializer="json")
async def rl_step(run: RunRef, step: int, model: Path) -> dict[str, Any]:
    """Step `step`, from 1: trials with the weights of version `step - 1`, then weights of version `step`."""
    config, label, started = read_run_config(run), step_label(step), time.monotonic()
    await sample_pool(run, label, step, config.data, config.rollout)

    emit(Event("stage", label, "trials"))
    trials, _ = await both(
        run_trials(
            run, label, step, model, config.serving.window, config.rollout.sampling, config.sandbox, config.scaffold,
            config.rollout.concurrency, config.rollout.infra_attempts,
        ),
        verify_trials(run, label, config.sandbox, config.verifier),
    )  # fmt: skip
    collected = time.monotonic()

    emit(Event("stage", label, "update"))
    metrics = await assemble_batch(run, label)
    metrics |= await compute_advantages(run, label, config.algorithm)
    update = await update_policy(run, label, step, config.rollout.temperature)

    emit(Event("stage", label, "sync"))
    sync = await sync_weights(run, label, step, config.serving)

    metrics |= update["metrics"]
    metrics |= {
        "timing_s/gen": trials["seconds"],
        "timing_s/collect": collected - started,
        "timing_s/update_actor": update["seconds"],
        "timing_s/update_weights": sync["seconds"],
        "timing_s/step": time.monotonic() - started,
        "training/global_step": float(step),
    }
    return await record_step(run, label, step, metrics)


async def both(trials: Any, verdicts: Any) -> tuple[Any, Any]:
    """Trials and their grading at the same time. If one fails the other is stopped, and that failure is raised."""
    running = [asyncio.ensure_future(trials), asyncio.ensure_future(verdicts)]
    try:
        done = await asyncio.gather(*running)
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
    return done[0], done[1]
