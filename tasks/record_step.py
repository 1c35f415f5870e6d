"""Stage 8 of a step: its record in the journal, in MLflow and in the log, each once."""

import asyncio
import logging
from typing import Any

from prefect import task

from tasks.journal import write_json
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.tracing import TracingConfig, trace_trials
from tasks.tracking import Tracker
from tasks.trial_table import write_trial_table
from trainer.metrics import step_line

_log = logging.getLogger(__name__)


@task(**staged("record_step", timeout=600))
async def record_step(
    run: RunRef,
    label: str,
    step: int,
    metrics: dict[str, float],
    warnings: list[str],
    tracing: TracingConfig = TracingConfig(),  # noqa: B008  (frozen)
) -> dict[str, Any]:
    """Write record.json, the table of trials, one line to the log (and one for each warning); metrics and some traces
    to MLflow."""
    await _trace(run, label, step, tracing)
    # the tracking server is asked by `open` too, and trials may run in this loop
    await asyncio.to_thread(lambda: Tracker.open(run).log_step(step, metrics))
    _log_once(run, f"step:{step} ", step_line(step, metrics))
    for number, warning in enumerate(warnings, 1):
        _log_once(run, f"warning {number} of step {step}: ", f"warning {number} of step {step}: {warning}")
        emit(Event("note", label, f"step {step}: {warning}"))
    await asyncio.to_thread(write_trial_table, run.journal, label)
    record = {"step": step, "metrics": metrics}
    write_json(run.journal.stage_dir(label) / "record.json", record)
    emit(Event("step", label, done=step, data=metrics))
    return record


async def _trace(run: RunRef, label: str, step: int, tracing: TracingConfig) -> None:
    """Traces are for looking at: a tracking server that takes none costs no step."""
    try:
        await asyncio.to_thread(trace_trials, run, label, step, tracing)
    except Exception as error:
        _log.warning("step %d: no traces: %s", step, error, exc_info=error)
        emit(Event("note", label, f"step {step}: no traces were written ({type(error).__name__}: {error})"))


def _log_once(run: RunRef, beginning: str, line: str) -> None:
    """Append a line, unless an interrupted attempt has written one with this beginning."""
    run.log_file.parent.mkdir(parents=True, exist_ok=True)
    with open(run.log_file, "a+") as file:
        file.seek(0)
        if not any(known.startswith(beginning) for known in file):
            file.write(line + "\n")
