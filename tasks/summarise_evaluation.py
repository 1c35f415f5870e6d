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
from tasks.trial_files import load_trial
from tasks.trial_table import write_trial_table


@task(**staged("summarise_evaluation", timeout=600))
async def summarise_evaluation(run: RunRef, label: str, step: int) -> dict[str, Any]:
    """Write record.json of an evaluation of the weights after `step`."""
    folder = run.journal.stage_dir(label)
    trials = [load_trial(trial) for trial in run.journal.trials(label)]
    summary = {"step": step} | summarise(trials, read_groups(folder / "groups.parquet"))
    await asyncio.to_thread(write_trial_table, run.journal, label)
    write_json(folder / "record.json", summary)
    emit(Event("eval", label, done=step, data=summary))
    return summary
