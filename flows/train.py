"""Train a policy: one parent flow run for a training run, one subflow for each step."""

import asyncio
from pathlib import Path
from typing import Any

from prefect import flow

from flows.config import RunConfig
from flows.environment import default_root, tracking_uri
from flows.evaluate import evaluate
from flows.open_run import open_run
from flows.preflight.run import preflight
from flows.preflight.run import summary as preflight_summary
from flows.report.publish import publish_report
from flows.step import rl_step
from tasks.journal import eval_label, step_label
from tasks.lease import lease
from tasks.prepare import prepare_model, prepare_pools, prepare_sandbox
from tasks.progress import Event, emit
from tasks.recover import recover
from tasks.run import RunRef
from tasks.save_checkpoint import save_checkpoint
from tasks.start_engines import start_engines, stop_engines
from tasks.track_run import end_tracking, start_tracking
from trainer.learner.checkpoint import MARKER
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
    with lease(root / config.project / config.experiment, "train"):
        return await _train(config, root)


async def _train(config: RunConfig, root: Path) -> dict[str, Any]:
    run = open_run(config, root, tracking_uri(root))
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
    with ray_cluster():
        status = "FAILED"
        try:
            await asyncio.gather(
                start_engines(run, model, config.serving, config.learner, config.algorithm, config.plugins),
                start_tracking(run, config.model_dump(mode="json")),
            )
            summary = await _steps(run, config, model)
            status = "FINISHED"
        except (asyncio.CancelledError, KeyboardInterrupt):
            status = "KILLED"
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
    checkpoint = run.journal.checkpoints / f"global_step_{total}" / MARKER
    scored = not config.schedule.eval_after or run.journal.stage(eval_label(total), "record.json") is not None
    if run.journal.stage(step_label(total), "record.json") is None or not checkpoint.is_file() or not scored:
        return None
    records = {step: run.journal.stage(eval_label(step), "record.json") for step in range(total + 1)}
    return _summary(run, total, {step: record for step, record in records.items() if record is not None})


def _summary(run: RunRef, steps: int, evaluations: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {"run": run.name, "steps": steps, "evaluations": {str(step): record for step, record in evaluations.items()}}


async def _steps(run: RunRef, config: RunConfig, model: Path) -> dict[str, Any]:
    schedule = config.schedule
    done = await recover(run, config.rollout.temperature, config.serving)
    evaluations: dict[int, dict[str, Any]] = {}
    if schedule.eval_before and (done == 0 or run.journal.stage(eval_label(0), "record.json")):
        evaluations[0] = await evaluate(run, 0, model)
    for step in range(1, schedule.total_steps + 1):
        if run.journal.stage(step_label(step), "record.json") is None:
            await rl_step(run, step, model)
        last = step == schedule.total_steps
        if step >= done and (last or step % schedule.save_freq == 0):
            await save_checkpoint(run, step_label(step), step, schedule.keep_checkpoints)
        due = schedule.test_freq and step % schedule.test_freq == 0
        if step >= done and (due or (last and schedule.eval_after)):
            evaluations[step] = await evaluate(run, step, model)
    return _summary(run, schedule.total_steps, evaluations)
