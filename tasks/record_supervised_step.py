"""Of a step of a warm start: its record in the journal and in MLflow, each once."""

import asyncio
from typing import Any

from prefect import task

from tasks.journal import write_json
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.tracking import Tracker


@task(**staged("record_supervised_step", timeout=600))
async def record_supervised_step(run: RunRef, label: str, step: int, metrics: dict[str, float]) -> dict[str, Any]:
    """Write record.json; metrics to MLflow."""
    await asyncio.to_thread(lambda: Tracker.open(run).log_step(step, metrics))
    record = {"step": step, "metrics": metrics}
    write_json(run.journal.stage_dir(label) / "record.json", record)
    emit(Event("supervised_step", label, done=step, data=metrics))
    return record
