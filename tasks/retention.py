"""Deletes the checkpoints of a run that nothing asks to keep."""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from tasks.journal import Journal, eval_label, step_label
from tasks.progress import Event, emit
from trainer.learner.checkpoint import list_checkpoints, remove
from trainer.learner.retention import Retention


def apply_retention(journal: Journal, retention: Retention) -> list[int]:
    """Delete what `retention` does not keep. Returns the steps that were deleted."""
    checkpoints = {checkpoint.step: checkpoint for checkpoint in list_checkpoints(journal.checkpoints)}
    scores = scores_of(journal, checkpoints, retention.best_metric) if retention.best_metric else {}
    kept = retention.kept(checkpoints, scores)
    doomed = [step for step in checkpoints if step not in kept]
    for step in doomed:
        remove(checkpoints[step].path)
    return doomed


def scores_of(journal: Journal, steps: Iterable[int], metric: str) -> dict[int, float]:
    """The metric after each of these steps, where the journal has it: of the evaluation, else of the step itself.

    One that is in no record at all is told, with the names that are like it.
    """
    scores: dict[int, float] = {}
    known: set[str] = set()
    for step in steps:
        metrics = _metrics(journal, step)
        known |= metrics.keys()
        if metric in metrics and math.isfinite(metrics[metric]):
            scores[step] = metrics[metric]
    if known and not scores:
        alike = get_close_matches(metric, known, cutoff=0.5) or sorted(known)[:5]
        text = f"schedule.best_metric is {metric!r}, which no record has; there are {', '.join(alike)}"
        emit(Event("note", "", text))
    return scores


def _metrics(journal: Journal, step: int) -> dict[str, float]:
    record: dict[str, Any] = journal.stage(step_label(step), "record.json") or {}
    evaluation: dict[str, Any] = journal.stage(eval_label(step), "record.json") or {}
    both = record.get("metrics", {}) | evaluation
    return {name: float(value) for name, value in both.items() if isinstance(value, int | float)}
