"""Stage 8 of a step: its record in the journal, in MLflow and in the log, each once."""

import asyncio
from typing import Any

from prefect import task

from tasks.journal import write_json
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.tracking import Tracker
from trainer.metrics import step_line


@task(**staged("record_step", timeout=600))
async def record_step(
    run: RunRef, label: str, step: int, metrics: dict[str, float], warnings: list[str]
) -> dict[str, Any]:
    """Write record.json, one line to the log (and one for each warning) and the metrics to MLflow."""
    await asyncio.to_thread(Tracker.open(run).log_step, step, metrics)
    _log_once(run, f"step:{step} ", step_line(step, metrics))
    for number, warning in enumerate(warnings, 1):
        _log_once(run, f"warning {number} of step {step}: ", f"warning {number} of step {step}: {warning}")
        emit(Event("note", label, f"step {step}: {warning}"))
    record = {"step": step, "metrics": metrics}
    write_json(run.journal.stage_dir(label) / "record.json", record)
    emit(Event("step", label, done=step, data=metrics))
    return record


def _log_once(run: RunRef, beginning: str, line: str) -> None:
    """Append a line, unless an interrupted attempt has written one with this beginning."""
    run.log_file.parent.mkdir(parents=True, exist_ok=True)
    with open(run.log_file, "a+") as file:
        file.seek(0)
        if not any(known.startswith(beginning) for known in file):
            file.write(line + "\n")
