"""Train a policy: one parent flow run for a training run, one subflow for each step."""

import asyncio
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow

from flows.checkpoints import has_weights
from flows.config import RunConfig
from flows.diagnosis.process import recorded_end
from flows.diagnosis.verdict import is_first_to_judge, judge_first_step
from flows.environment import default_root, tracking_uri
from flows.evaluate import evaluate
from flows.open_run import open_run
from flows.preflight.run import preflight
from flows.preflight.run import summary as preflight_summary
from flows.report.publish import publish_report
from flows.rolling_out import rolling_out
from flows.step import rl_step
from flows.subflows import for_label
from tasks.journal import eval_label, step_label
from tasks.lease import lease
from tasks.outlive_engines import outliving_engines
from tasks.prepare import prepare_model, prepare_pools, prepare_sandbox
from tasks.progress import Event, emit
from tasks.reattach import faults_of_engines
from tasks.recover import recover
from tasks.run import RunRef
from tasks.run_log import logging_to
from tasks.save_checkpoint import Saving, save_checkpoint, saving
from tasks.start_engines import start_engines, stop_engines
from tasks.thin_trials import thin_trials
from tasks.track_run import end_tracking, start_tracking
from tasks.turns import turn_of_learner, turn_of_replicas
from trainer.placement import ray_cluster


@flow(
    name="train",
    flow_run_name="train-{config.project}-{config.experiment}",
    persist_result=True,
    result_serializer="json",
)
async def train(config: RunConfig, root: Path | None = None) -> dict[str, Any]:
    """Train until `schedule.total_steps`. A run of the same name goes on where it stopped.

    Args:
        config: The run.
        root: Where runs, models and pools are kept; `runs` if unset.
    """
    root = (root or default_root()).resolve()
    folder = root / config.project / config.experiment
    with lease(folder, "train"), recorded_end(folder):
        run = open_run(config, root, tracking_uri(root))
        with logging_to(run):
            return await _train(run, config)


async def _train(run: RunRef, config: RunConfig) -> dict[str, Any]:
    hours = config.schedule.max_hours
    until = math.inf if hours is None else time.monotonic() + 3600 * hours
    emit(Event("note", "", f"journal in {run.journal.root}"))
    for warning in config.warnings:
        emit(Event("note", "", f"warning: {warning}"))
    finished = _summary_if_finished(run, config)
    if finished is not None:
        text = "this run is complete; raise schedule.total_steps to train on, or take another experiment name"
        emit(Event("note", "", text))
        return finished
    await prepare_sandbox(config.sandbox, config.scaffold)
    model, _ = await asyncio.gather(prepare_model(run, config.model), prepare_pools(run, config.data, config.rollout))
    findings = await asyncio.to_thread(preflight, config, run.root)
    emit(Event("note", "", f"preflight: {preflight_summary(findings)}; `testgrad check` tells them"))
    learner = config.learner.over(config.schedule.total_steps)
    with ray_cluster():
        status = "KILLED"
        try:
            engines = (run, model, config.serving, learner, config.algorithm)
            start = partial(start_engines, *engines, config.plugins)
            await asyncio.gather(start(), start_tracking(run, config.model_dump(mode="json")))

            async def steps() -> dict[str, Any]:
                done = await recover(run, config.rollout.temperature, config.serving, config.pool)
                async with rolling_out(run, config, model, done), saving() as current:
                    return await _steps(run, config, model, current, until, done)

            summary = await outliving_engines(run, steps, partial(faults_of_engines, *engines), start)
            status = "FINISHED"
        except Exception:
            status = "FAILED"
            raise
        finally:
            if status != "KILLED":
                await publish_report(run)
            await end_tracking(run, status)
            await stop_engines(run)
    return summary


def _summary_if_finished(run: RunRef, config: RunConfig) -> dict[str, Any] | None:
    """What the flow returns, if nothing of the run is left to do."""
    total = config.schedule.total_steps
    scored = not config.schedule.eval_after or run.journal.stage(eval_label(total), "record.json") is not None
    if run.journal.stage(step_label(total), "record.json") is None or not has_weights(run.journal, total) or not scored:
        return None
    records = {step: run.journal.stage(eval_label(step), "record.json") for step in range(total + 1)}
    return _summary(run, total, {step: record for step, record in records.items() if record is not None})


def _summary(run: RunRef, steps: int, evaluations: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {"run": run.name, "steps": steps, "evaluations": {str(step): record for step, record in evaluations.items()}}


async def _steps(
    run: RunRef, config: RunConfig, model: Path, saving: Saving, until: float, done: int
) -> dict[str, Any]:
    """The steps after `done`. One that ends after `until`, a time of the monotonic clock, is the last for now."""
    schedule = config.schedule
    evaluations: dict[int, dict[str, Any]] = {}
    if schedule.eval_before and (done == 0 or run.journal.stage(eval_label(0), "record.json")):
        evaluations |= await _scored(run, config, 0, model)
    for step in range(1, schedule.total_steps + 1):
        saving.check()
        if run.journal.stage(step_label(step), "record.json") is None:
            await for_label(rl_step, step_label(step))(run, step, model)
        if is_first_to_judge(step, done):
            await judge_first_step(run, config.diagnosis)
        if step >= done:
            await asyncio.to_thread(thin_trials, run.journal, schedule.keep_trials, config.tracing, before=step)
        last = step == schedule.total_steps
        # at least one step is made, or a run whose boot takes as long would never get anywhere
        over = not last and step > done and time.monotonic() >= until
        if step >= done and (last or over or step % schedule.save_freq == 0):
            await turn_of_learner(run, config.serving)
            asked = asyncio.Event()
            # one that is gone from the disk is made again, though Prefect knows that it was made
            make = save_checkpoint.with_options(refresh_cache=not has_weights(run.journal, step))
            save = make(run, step_label(step), step, schedule.retention, config.pool, asked)
            await saving.start(save, asked)
            if not schedule.save_in_background:
                await saving.end()
        due = schedule.test_freq and step % schedule.test_freq == 0
        if step >= done and (due or (last and schedule.eval_after)):
            evaluations |= await _scored(run, config, step, model)
        if over:
            text = (
                f"schedule.max_hours ({schedule.max_hours:g}) are over: stopped after step {step}; the same names go on"
            )
            emit(Event("note", "", text))
            return _summary(run, step, evaluations) | {"stopped": text}
    return _summary(run, schedule.total_steps, evaluations)


async def _scored(run: RunRef, config: RunConfig, step: int, model: Path) -> dict[int, dict[str, Any]]:
    """The evaluation after `step`, by its number; none if it takes too long, which must not hold up the run.

    Trials of training that are in flight go on beside it: it has slots of its own, and the weights stay what they are
    until it has ended.
    """
    await turn_of_replicas(run, config.serving)
    try:
        async with asyncio.timeout(config.evaluation.timeout) as limit:
            return {step: await for_label(evaluate, eval_label(step))(run, step, model, trained=run)}
    except TimeoutError:
        if not limit.expired():
            raise
    given = f"evaluation.timeout of {config.evaluation.timeout:g} s"
    emit(Event("note", "", f"the evaluation after step {step} was given up after {given}; trials that ended are kept"))
    return {}
