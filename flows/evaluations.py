"""Finished evaluations by name, and two of them side by side."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.evaluation import stored_results
from tasks.journal import Journal, eval_label, read_json
from tasks.snapshots import FILE
from tasks.statistics.paired import Comparison, compare

_NAME = re.compile(r"(?P<run>[^/@]+/[^/@]+)(@(?P<step>\d+))?")
_SECTIONS = ("evaluation", "scaffold", "budgets", "sandbox", "verifier", "serving", "rollout")
"""Sections of a config on which a score depends besides the weights."""
_SPEED = {
    *("serving.replicas", "serving.threads", "serving.kv_cache_gib", "rollout.concurrency", "rollout.tasks_per_step"),
    *("rollout.attempts_per_task", "rollout.temperature", "rollout.top_p", "evaluation.max_tasks"),
    "evaluation.attempts_per_task",
}
"""Settings in these that change how long it takes or how sure it is, not what is measured."""


class EvaluationError(ValueError):
    """A name that names no finished evaluation, or two that cannot be compared."""


@dataclass(frozen=True)
class FinishedEvaluation:
    """What a finished evaluation left: its record, its settings by section.key, and its snapshots' digests."""

    name: str
    step: int
    record: Mapping[str, Any]
    settings: Mapping[str, str]
    snapshots: Mapping[str, str]


@dataclass(frozen=True)
class SideBySide:
    """A comparison, and what else than the weights differs: (setting, first, second)."""

    comparison: Comparison
    differences: list[tuple[str, str, str]]


def finished_steps(journal: Journal) -> list[int]:
    """Steps after which an evaluation was finished, in order."""
    records = (journal.root / "evals").glob("step_*/record.json")
    return sorted(int(path.parent.name.removeprefix("step_")) for path in records)


def find_evaluation(root: Path, name: str) -> FinishedEvaluation:
    """The evaluation `project/experiment@step`; the newest of the run if no step is given.

    Raises:
        EvaluationError: there is none.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise EvaluationError(f"{name!r} names no evaluation; write project/experiment, or project/experiment@STEP")
    journal = Journal(root / match["run"])
    steps = finished_steps(journal)
    if not steps:
        raise EvaluationError(f"{match['run']} has no finished evaluation in {journal.root}")
    step = int(match["step"]) if match["step"] else steps[-1]
    if step not in steps:
        told = ", ".join(map(str, steps))
        raise EvaluationError(
            f"{match['run']} has no finished evaluation after step {step}; there are some after {told}"
        )
    folder = journal.stage_dir(eval_label(step))
    record = read_json(folder / "record.json") or {}
    if "results" not in record:
        raise EvaluationError(f"{folder}/record.json does not tell of single tasks; evaluate again")
    config = (read_json(journal.root / "config.json") or {}).get("config", {})
    return FinishedEvaluation(f"{match['run']}@{step}", step, record, _settings(config), read_json(folder / FILE) or {})


def side_by_side(first: FinishedEvaluation, second: FinishedEvaluation) -> SideBySide:
    """Compare two evaluations on the tasks that are in both.

    Raises:
        EvaluationError: a task of the same name is not the same task.
        ValueError: no task is scored in both.
    """
    shared = first.snapshots.keys() & second.snapshots.keys()
    other = sorted(task for task in shared if first.snapshots[task] != second.snapshots[task])
    if other:
        raise EvaluationError(
            f"{len(other)} of {len(shared)} tasks have the same name but another snapshot, the first {other[0]}: "
            "the two were scored on different tasks; evaluate one of them again"
        )
    names = sorted(first.settings.keys() | second.settings.keys())
    rows = [(name, first.settings.get(name, "–"), second.settings.get(name, "–")) for name in names]
    return SideBySide(
        compare(stored_results(first.record), stored_results(second.record)), [row for row in rows if row[1] != row[2]]
    )


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{section}.{key}": json.dumps(value, sort_keys=True)
        for section in _SECTIONS
        for key, value in (config.get(section) or {}).items()
        if f"{section}.{key}" not in _SPEED
    }
