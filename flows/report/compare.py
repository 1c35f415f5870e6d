"""Two runs side by side. What their trials do not support is called no difference."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flows.report import figures
from flows.report.page import render, settings
from flows.report.run_data import RunData

_LAST = 10
_MAX_TASKS = 20


@dataclass(frozen=True)
class PairedScore:
    """Second run less first on the held-out clusters that both were scored on, after a step of each."""

    steps: tuple[int, int]
    clusters: int
    gain: float
    low: float
    high: float
    better: str | None

    @property
    def verdict(self) -> str:
        return f"{self.better} is better" if self.better else "these trials support no difference"


@dataclass(frozen=True)
class TaskPair:
    """A training task in both runs: solved and scored attempts in each."""

    task_id: str
    first: tuple[int, int]
    second: tuple[int, int]

    @property
    def change(self) -> float:
        return self.second[0] / self.second[1] - self.first[0] / self.first[1]


def render_comparison(first: RunData, second: RunData) -> str:
    """The page that compares two runs."""
    curves, empty = figures.curves([first, second])
    pairs = task_pairs(first, second)
    held_out = figures.validation([first, second])
    return render(
        "compare.html.j2",
        title=f"{first.name} and {second.name} · testgrad",
        runs=[first, second],
        summary=summary(first, second),
        paired=paired_scores(first, second),
        validation=[held_out] if held_out is not None else [],
        curves=curves,
        empty=empty,
        pairs=pairs[:_MAX_TASKS],
        shared_tasks=len(pairs),
        settings=differences(dict(settings(first.config)), dict(settings(second.config))),
        versions=differences(first.about, second.about),
    )


def summary(first: RunData, second: RunData) -> list[tuple[str, str, str]]:
    """What both runs came to: name, and a text for each."""
    rows = {
        "steps": lambda run: run.state,
        f"score, mean of the last {_LAST} steps": lambda run: _recent(run, "critic/score/mean"),
        "seconds a step": lambda run: _recent(run, "timing_s/step"),
        "tokens a second and device": lambda run: _recent(run, "perf/throughput"),
        "Pearson": lambda run: _recent(run, "training/rollout_actor_probs_pearson_corr"),
        "training trials": lambda run: f"{sum(stage.ended for stage in run.training):,}",
        "lost to infrastructure": lambda run: _share(run, "infra_error"),
        "tampered": lambda run: f"{run.tampered_total:,}",
    }
    return [(name, tell(first), tell(second)) for name, tell in rows.items()]


def paired_scores(first: RunData, second: RunData) -> list[PairedScore]:
    """The validations after equal steps, and the last ones of each if these are not equal."""
    from tasks.evaluation import difference_interval  # brings Prefect along

    before = {e.step: e.clusters for e in first.evaluations if e.clusters}
    after = {e.step: e.clusters for e in second.evaluations if e.clusters}
    steps = [(step, step) for step in sorted(before.keys() & after.keys())]
    if before and after and (last := (max(before), max(after))) not in steps:
        steps.append(last)
    result = []
    for a, b in steps:
        shared = before[a].keys() & after[b].keys()
        if shared:
            gain = difference_interval(before[a], after[b])
            better = second.name if gain.low > 0 else first.name if gain.high < 0 else None
            result.append(PairedScore((a, b), len(shared), gain.mean, gain.low, gain.high, better))
    return result


def task_pairs(first: RunData, second: RunData) -> list[TaskPair]:
    """Training tasks that both runs tried, those whose share of solved attempts differs most first."""
    before, after = _by_task(first), _by_task(second)
    pairs = [TaskPair(task, before[task], after[task]) for task in before.keys() & after.keys()]
    return sorted(pairs, key=lambda pair: (-abs(pair.change), pair.task_id))


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Names whose values differ, with both."""
    names = sorted(first.keys() | second.keys())
    rows = [(name, first.get(name, "–"), second.get(name, "–")) for name in names]
    return [row for row in rows if row[1] != row[2]]


def _by_task(run: RunData) -> dict[str, tuple[int, int]]:
    solved: Counter[str] = Counter()
    scored: Counter[str] = Counter()
    for group in (group for stage in run.training for group in stage.groups if group.scored):
        solved[group.task_id] += group.solved
        scored[group.task_id] += group.scored
    return {task: (solved[task], scored[task]) for task in scored}


def _recent(run: RunData, metric: str) -> str:
    values: Any = run.metrics.get(metric, np.empty(0))[-_LAST:]
    known = values[np.isfinite(values)]
    mean = float(known.mean()) if len(known) else math.nan
    return "–" if math.isnan(mean) else f"{mean:.4g}"


def _share(run: RunData, outcome: str) -> str:
    trials = sum(stage.ended for stage in run.training)
    return f"{sum(stage.outcomes[outcome] for stage in run.training) / trials:.1%}" if trials else "–"
