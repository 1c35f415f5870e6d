"""Where reports go: a file, and MLflow."""

import asyncio
import logging
from pathlib import Path

from flows.report.compare import render_comparison
from flows.report.page import render_report
from flows.report.reader import read_run
from tasks.journal import write_text
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.tracking import Tracker

REPORT = "report.html"

_log = logging.getLogger(__name__)


def write_report(root: Path, name: str, path: Path | None = None) -> Path:
    """Write the report on the run `name`, in its journal if `path` is not given. Returns where it is.

    Links to trajectories are relative to the journal.

    Raises:
        ReportError: there is no such run.
    """
    path = path or root / name / REPORT
    write_text(path, render_report(read_run(root, name)))
    return path


def write_comparison(root: Path, first: str, second: str, path: Path) -> Path:
    """Write the comparison of two runs.

    Raises:
        ReportError: there is no such run.
    """
    write_text(path, render_comparison(read_run(root, first), read_run(root, second)))
    return path


async def publish_report(run: RunRef) -> Path | None:
    """Write a run's report and enter it in MLflow. A report is for looking at: one that fails costs no run."""
    try:
        path = await asyncio.to_thread(write_report, run.root, run.name)
        await asyncio.to_thread(lambda: Tracker.open(run).log_artifact(path))
    except Exception as error:
        _log.warning("no report: %s", error, exc_info=error)
        emit(Event("note", "", f"no report was written ({type(error).__name__}: {error})"))
        return None
    emit(Event("note", "", f"report in {path}"))
    return path
