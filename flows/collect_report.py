"""What a collection came to, as files to keep: report.md and its picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.difficulty_report import Measured, facts_of, write_report
from harness.pool.difficulty import Band, count_passes, read_trials, select
from harness.pool.index import TaskPointer

REPORT = "report.md"
_LEAST_TRIALS = 2


def write_collection_report(folder: Path, tasks: Sequence[TaskPointer], record: Mapping[str, Any]) -> Path:
    """Write report.md of a collection, with the tasks that are solved sometimes marked as those to keep."""
    trials = folder / "trials"
    counts = count_passes(read_trials(trials)) if trials.is_dir() else {}
    selection = select(tasks, counts, Band(), _LEAST_TRIALS)
    facts = facts_of(trials) | {
        "coverage": f"{record['counted']} of the {record['wanted']} trials that were wanted count",
    }
    measured = Measured(tasks, counts, selection, "(0, 1)", facts)
    return write_report(folder / REPORT, f"Collection {folder.name}", measured)
