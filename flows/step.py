"""One RL step: sample tasks, run trials, grade, advantages, update, sync.

In the modes that sample ahead, a step takes graded groups that the rollouter has ready; all after that is the same.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

from prefect import flow

from flows.config import RunConfig
from flows.open_run import read_run_config
from tasks.assemble_batch import assemble_batch
from tasks.check_fidelity import check_fidelity, columns_for_evidence
from tasks.compute_advantages import compute_advantages
from tasks.infra_limit import make_lost_again
from tasks.journal import step_label
from tasks.progress import Event, emit
from tasks.record_step import record_step
from tasks.rollouts import rollouts_of
from tasks.run import RunRef
from tasks.run_trials import run_trials
from tasks.sample_pool import refill_pool, sample_pool
from tasks.score_batch import score_batch
from tasks.sync_weights import sync_weights
from tasks.take_groups import take_groups
from tasks.turns import turn_of_learner, turn_of_replicas
from tasks.update_policy import update_policy
from tasks.verify_trials import all_graded, verify_trials
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS
from trainer.algorithms.rollout_correction.advice import warnings_for
from trainer.algorithms.staleness import age_warnings
from trainer.fidelity.gate import FidelityError
from trainer.metrics import cpu_seconds, machine_cpu_seconds, throughput


@flow(name="rl-step", flow_run_name="step-{step}", persist_result=True, result_serializer="json")
async def rl_step(run: RunRef, step: int, model: Path) -> dict[str, Any]:
    """Step `step`, from 1: trials with the weights of version `step - 1`, then weights of version `step`.

    Raises:
        FidelityError: engine and trainer have disagreed for too many steps; the step itself is done and recorded.
    """
    config, label, started = read_run_config(run), step_label(step), time.monotonic()
    cpu_before, machine_before = cpu_seconds(), machine_cpu_seconds()
    by_name = "reward_weights" in ADVANTAGE_ESTIMATORS[config.algorithm.adv_estimator].settings
    greedy = config.algorithm.needs_greedy_trial
    trials = await collect_trials(run, label, step, model, config, greedy, by_name)
    collected = time.monotonic()

    metrics = await assemble_batch(run, label, config.filter, config.reward, by_name)
    columns = sorted({*config.algorithm.score_columns, *columns_for_evidence(run, step, config.fidelity)})
    metrics |= await turn_of_learner(run, config.serving)
    metrics |= await score_batch(run, label, step, columns, config.rollout.temperature)
    metrics |= await compute_advantages(run, label, step, config.algorithm, config.stale_tokens)
    emit(Event("stage", label, "update"))
    update = await update_policy(run, label, step, config.rollout.temperature, config.samples_ahead)

    emit(Event("stage", label, "sync"))
    sync = await sync_weights(run, label, step, config.serving)
    if config.samples_ahead:
        await rollouts_of(run).synced(step)

    metrics |= trials.get("metrics", {}) | update["metrics"] | sync.get("metrics", {})
    metrics |= {
        "timing_s/gen": trials["seconds"],
        "timing_s/collect": collected - started,
        "timing_s/update_actor": update["seconds"],
        "timing_s/update_weights": sync["seconds"],
        "timing_s/step": time.monotonic() - started,
        "perf/cpu_seconds/flow": cpu_seconds() - cpu_before,
        "perf/cpu_seconds/machine": machine_cpu_seconds() - machine_before,
        "training/global_step": float(step),
    }
    metrics |= throughput(metrics, config.learner.ranks)
    fidelity = await check_fidelity(
        run, label, step, metrics, config.rollout.temperature, config.fidelity, config.learner, config.serving, model,
        config.samples_ahead,
    )  # fmt: skip
    metrics |= fidelity["metrics"]
    warnings = [
        *warnings_for(metrics, config.algorithm.rollout_correction),
        *age_warnings(metrics, config.staleness),
        *fidelity["warnings"],
    ]
    record = await record_step(run, label, step, metrics, warnings, config.tracing)
    if fidelity["stop"] is not None:
        raise FidelityError(fidelity["stop"])
    return record


async def collect_trials(
    run: RunRef, label: str, step: int, model: Path, config: RunConfig, greedy: bool, by_name: bool
) -> dict[str, Any]:
    """Trials of the step's tasks, and of fresh ones while too few groups carry a signal and refills are left.

    Groups that are accepted stay, whatever comes after. Returns the seconds in which trials ran, or were waited for
    where they are sampled ahead, and metrics.
    """
    if config.samples_ahead:
        emit(Event("stage", label, "trials"))
        return dict(await take_groups(run, label, step, config.rollout.step_timeout))
    await turn_of_replicas(run, config.serving)
    await sample_pool(run, label, step, config.data, config.rollout, greedy, config.pool)
    emit(Event("stage", label, "trials"))
    seconds = (await graded_trials(run, label, step, model, config))["seconds"]
    for refill in range(1, config.filter.refill_rounds + 1):
        drawn = await for_refill(refill_pool, refill)(
            run, label, step, refill, config.data, config.rollout, config.filter, config.reward, greedy, by_name
        )
        if not drawn:
            break
        seconds += (await graded_trials(run, label, step, model, config, refill))["seconds"]
    return {"seconds": seconds}


async def graded_trials(
    run: RunRef, label: str, step: int, model: Path, config: RunConfig, refill: int = 0
) -> dict[str, Any]:
    """Run and grade the trials that a step began with, or those of a refill. Returns what `run_trials` does."""
    share = config.rollout.max_infra_share
    if again := await asyncio.to_thread(make_lost_again, run, label):
        emit(Event("note", label, f"{again} trials or gradings were lost to infrastructure; they are made again"))
    # Prefect may know both stages for done where trials have been set aside since, or removed by hand
    anew = not await asyncio.to_thread(all_graded, run, label, refill)
    trials, _ = await both(
        for_refill(run_trials, refill).with_options(refresh_cache=anew)(
            run, label, step, model, config.serving, config.rollout.sampling, config.sandbox, config.scaffold,
            config.budgets, config.rollout.concurrency, config.rollout.infra_attempts, refill,
            max_infra_share=share, step_timeout=config.rollout.step_timeout, workers=config.rollout.workers,
            plugins=config.plugins,
        ),
        for_refill(verify_trials, refill).with_options(refresh_cache=anew)(
            run, label, config.sandbox, config.verifier, config.budgets, config.rollout.infra_attempts, refill, share
        ),
    )  # fmt: skip
    return dict(trials)


def for_refill(stage: Any, refill: int) -> Any:
    """The stage under a name of its own for each refill, by which Prefect's cache and its pages tell them apart."""
    if not refill:
        return stage
    name = f"{stage.name}_refill_{refill}"
    return stage.with_options(name=name, task_run_name=f"{name} {{label}}")


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
