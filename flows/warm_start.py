"""Teach a policy by example, before reinforcement learning: supervised fine-tuning on accepted trajectories."""

import asyncio
import json
from pathlib import Path
from typing import Any

from prefect import flow

from flows.diagnosis.process import recorded_end
from flows.environment import default_root, tracking_uri
from flows.open_run import open_journal
from flows.step import both
from flows.warm_start_config import WarmStartConfig
from harness.demonstrations import find_demonstrator
from harness.pool.index import read_index
from harness.pool.kata import build_pool
from tasks.corpus import trial_folders
from tasks.demonstrate import LABEL as DEMONSTRATIONS
from tasks.demonstrate import plan_demonstrations, run_demonstrations
from tasks.draw_supervised_batch import draw_supervised_batch
from tasks.export_policy import export_policy
from tasks.gather_corpus import LABEL as CORPUS
from tasks.gather_corpus import gather_corpus
from tasks.heldout import HeldOut
from tasks.journal import read_json, step_label, write_json
from tasks.lease import lease
from tasks.measure_loss import measure_loss
from tasks.prepare import prepare_model, prepare_sandbox
from tasks.progress import Event, emit
from tasks.record_supervised_step import record_supervised_step
from tasks.run import RunRef
from tasks.run_log import logging_to
from tasks.save_checkpoint import save_checkpoint
from tasks.start_engines import stop_engines
from tasks.start_learner import start_learner
from tasks.track_run import tracked
from tasks.update_policy import update_policy
from tasks.verify_trials import verify_trials
from trainer.learner.retention import Retention
from trainer.placement import ray_cluster
from trainer.supervised import TEMPERATURE, loss_metrics, steps_per_epoch

SUMMARY = "summary.json"


@flow(
    name="warm-start",
    flow_run_name="warm-start-{config.project}-{config.experiment}",
    persist_result=True,
    result_serializer="json",
)
async def warm_start(config: WarmStartConfig, root: Path | None = None) -> dict[str, Any]:
    """Fine-tune a policy on accepted trajectories. One of the same name goes on where it stopped.

    Args:
        config: What is learnt from, and how.
        root: Where runs, models and pools are kept; `runs` if unset.

    Raises:
        CorpusError: there is nothing to learn from.
        HeldOutError: a task to learn from is held out.
        LeaseError: another process works on this warm start.
    """
    root = (root or default_root()).resolve()
    folder = root / config.project / config.experiment
    if not (folder / "config.json").is_file():
        # what is wrong from the start leaves no folder behind
        await asyncio.to_thread(check_inputs, config, root)
    with lease(folder, "warm-start"), recorded_end(folder):
        run = open_journal(config, root, tracking_uri(root))
        known = read_json(run.journal.root / SUMMARY)
        if known is not None:
            emit(Event("note", "", "this warm start is complete; take another name to make another one"))
            return dict(known)
        emit(Event("note", "", f"journal in {run.journal.root}"))
        with logging_to(run):
            return await _warm_start(run, config)


def check_inputs(config: WarmStartConfig, root: Path) -> None:
    """Raises CorpusError, PoolError or DemonstrationError for what is wrong from the start."""
    for source in config.sources:
        trial_folders(source)
    if config.demonstrations is not None:
        find_demonstrator(config.scaffold.name)
    if config.needs_kata:
        build_pool(root / "pools" / "kata")
    shown = [] if config.demonstrations is None else [config.demonstrations.train_index(root)]
    for index in [*config.heldout_indexes(root), *shown]:
        read_index(index, absent_tasks=True)


async def _warm_start(run: RunRef, config: WarmStartConfig) -> dict[str, Any]:
    model = await prepare_model(run, config.model)
    if config.needs_kata:  # looks up what is built
        await asyncio.to_thread(build_pool, run.root / "pools" / "kata")
    heldout = config.heldout_indexes(run.root)
    if config.demonstrations is not None:
        await _demonstrate(run, config, model, heldout)
    corpus = await gather_corpus(
        run, CORPUS, model, config.sources, heldout, config.window, config.per_task, config.validation_share,
        config.seed,
    )  # fmt: skip
    per_epoch = steps_per_epoch(corpus["train"]["trajectories"], config.batch_size)
    total = per_epoch * config.epochs
    emit(Event("note", "", corpus_line(corpus)))
    emit(Event("supervised_run", "", total=total, data={"steps_per_epoch": per_epoch}))
    with ray_cluster():
        try:
            async with tracked(run, config.model_dump(mode="json")):
                done = await start_learner(run, model, config.learner.over(total))
                if done == 0:
                    await _measure_before(run)
                for step in range(1, total + 1):
                    if run.journal.stage(step_label(step), "record.json") is None:
                        await _step(run, config, step, per_epoch, total)
                folder = await export_policy(run, CORPUS)
        finally:
            await stop_engines(run)
    summary = _summary(run, corpus, total, folder)
    write_json(run.journal.root / SUMMARY, summary)
    return summary


async def _demonstrate(run: RunRef, config: WarmStartConfig, model: Path, heldout: list[Path]) -> None:
    """Make the demonstrations as trials of the run: each is graded, and only what passes is learnt from."""
    wanted = config.demonstrations
    assert wanted is not None
    index = wanted.train_index(run.root)
    known = HeldOut()
    for path in heldout:
        known.add_index(path)
    known.look_at_rows(await asyncio.to_thread(read_index, index), index)
    known.refuse()
    await prepare_sandbox(config.sandbox, config.scaffold)
    plan = await plan_demonstrations(run, DEMONSTRATIONS, index, wanted.difficulty, wanted.most, config.scaffold)
    emit(Event("note", "", f"{plan['demonstrations']} demonstrations of {config.scaffold.name} on {index}"))
    await both(
        run_demonstrations(
            run, DEMONSTRATIONS, model, config.window, config.window, config.sandbox, config.scaffold, config.budgets,
            wanted.concurrency, wanted.infra_attempts,
        ),
        verify_trials(
            run, DEMONSTRATIONS, config.sandbox, config.verifier, config.budgets, wanted.infra_attempts
        ),
    )  # fmt: skip


async def _measure_before(run: RunRef) -> None:
    label = step_label(0)
    if run.journal.stage(label, "record.json") is None:
        await record_supervised_step(run, label, 0, await measure_loss(run, label, 0))


async def _step(run: RunRef, config: WarmStartConfig, step: int, per_epoch: int, total: int) -> None:
    label, last = step_label(step), step == total
    trajectories = await draw_supervised_batch(run, label, step, config.batch_size, config.seed)
    update = await update_policy(run, label, step, TEMPERATURE)
    # a checkpoint holds the newest weights; a step that was taken before the last kill has no way back to its own
    if last or step % config.save_every == 0:
        await save_checkpoint(run, label, step, Retention(keep_last=config.keep_checkpoints))
    metrics = loss_metrics(update["metrics"]) | {
        "train/epoch": step / per_epoch,
        "train/trajectories": float(trajectories),
        "timing_s/update_actor": update["seconds"],
    }
    if last or step % (config.validate_every or per_epoch) == 0:
        metrics |= await measure_loss(run, label, step)
    await record_supervised_step(run, label, step, metrics)


def corpus_line(corpus: dict[str, Any]) -> str:
    """What is learnt from, in a line."""
    train, held = corpus["train"], corpus["validation"]
    left_out = ", ".join(f"{name} {count}" for name, count in corpus["left_out"].items())
    return (
        f"{train['trajectories']} trajectories of {train['tasks']} tasks to learn from ({train['tokens']} tokens), "
        f"{held['trajectories']} of {held['tasks']} held back; left out: {left_out or 'none'}"
    )


def _summary(run: RunRef, corpus: dict[str, Any], total: int, folder: Path) -> dict[str, Any]:
    records = {step: run.journal.stage(step_label(step), "record.json") or {} for step in range(total + 1)}
    metrics = {step: record.get("metrics", {}) for step, record in records.items()}
    return {
        "run": run.name,
        "steps": total,
        "model": str(folder),
        "corpus": {name: value for name, value in corpus.items() if name != "sessions"},
        "train_loss": {str(step): m["train/loss"] for step, m in metrics.items() if "train/loss" in m},
        "val_loss": {str(step): m["val/loss"] for step, m in metrics.items() if "val/loss" in m},
    }


def summary_json(summary: dict[str, Any]) -> str:
    """The summary for scripts."""
    return json.dumps(summary, sort_keys=True)
