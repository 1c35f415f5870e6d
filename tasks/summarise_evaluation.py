"""Last stage of an evaluation: what its trials say."""

import asyncio
from typing import Any

from prefect import task

from tasks.draw import read_groups
from tasks.evaluation import summarise
from tasks.journal import write_json
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.tracing import TracingConfig
from tasks.track_evaluation import track_evaluation
from tasks.trial_files import load_trial
from tasks.trial_table import write_trial_table


@task(**staged("summarise_evaluation", timeout=600))
async def summarise_evaluation(
    run: RunRef,
    label: str,
    step: int,
    tracing: TracingConfig = TracingConfig(),  # noqa: B008  (frozen)
    trained: RunRef | None = None,
    trained_step: int | None = None,
) -> dict[str, Any]:
    """Write record.json of an evaluation of the weights after `step`, and enter it in MLflow.

    Args:
        trained: The training run that the weights come from; None if that is not known.
        trained_step: After which of its steps, where the journal of the evaluation counts otherwise.
    """
    folder = run.journal.stage_dir(label)
    summary = await asyncio.to_thread(_summary, run, label, step)
    await asyncio.to_thread(write_trial_table, run.journal, label)
    await asyncio.to_thread(write_json, folder / "record.json", summary)
    trained_step = step if trained_step is None else trained_step
    await asyncio.to_thread(track_evaluation, run, label, trained_step, summary, tracing, trained)
    emit(Event("eval", label, done=step, data=summary))
    return summary


def _summary(run: RunRef, label: str, step: int) -> dict[str, Any]:
    trials = [load_trial(trial) for trial in run.journal.trials(label)]
    return {"step": step} | summarise(trials, read_groups(run.journal.stage_dir(label) / "groups.parquet"))
