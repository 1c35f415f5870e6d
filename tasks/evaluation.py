"""What the trials of an evaluation say about the policy."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from tasks.assemble_batch import filter_trials
from tasks.draw import Group
from tasks.trial_files import StoredTrial

RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def pass_at_k(attempts: int, solved: int, k: int) -> float:
    """Chance that at least one of `k` attempts solves a task, unbiased: 1 - C(n-c, k)/C(n, k).

    Chen et al., 2021 (arXiv:2107.03374).

    Raises:
        ValueError: fewer than `k` attempts.
    """
    if attempts < k:
        raise ValueError(f"pass@{k} needs {k} attempts, there are {attempts}")
    return 1.0 - comb(attempts - solved, k) / comb(attempts, k)


def summarise(trials: Sequence[StoredTrial], groups: Sequence[Group]) -> dict[str, Any]:
    """Mean reward, pass@k and coverage; rewards by cluster, for comparing two evaluations.

    Trials that infrastructure spoiled are left out and counted, never taken for failures of the policy.
    """
    scored, reasons = filter_trials(trials)
    rewards: dict[str, list[float]] = defaultdict(list)
    for item in scored:
        rewards[item.group_id].append(item.reward)
    clusters: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        clusters[group.cluster] += rewards[group.group_id]
    launched = sum(group.attempts for group in groups)
    values = [item.reward for item in scored]
    summary: dict[str, Any] = {
        "mean_reward": sum(values) / len(values) if values else float("nan"),
        "tasks": len(groups),
        "scored": len(scored),
        "launched": launched,
        "coverage": len(scored) / launched if launched else 0.0,
        "left_out": dict(reasons),
        "mean_response_length": float(np.mean([item.trial.record["response_length"] for item in scored]))
        if scored
        else 0.0,
        "clusters": {name: values for name, values in sorted(clusters.items()) if values},
    }
    fewest = min((len(attempts) for attempts in rewards.values() if attempts), default=0)
    for k in sorted({k for k in (1, 2, 4, 8, 16) if k <= fewest}):
        summary[f"pass_at_{k}"] = float(np.mean([pass_at_k(len(a), round(sum(a)), k) for a in rewards.values() if a]))
    return summary


def mean_interval(clusters: Mapping[str, Sequence[float]], seed: int = 0) -> Interval:
    """Mean of the cluster means, with a bootstrap over clusters: attempts at one function are not independent."""
    means = np.array([np.mean(values) for values in clusters.values()])
    return _bootstrap(means, seed)


def difference_interval(
    before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]], seed: int = 0
) -> Interval:
    """Mean over clusters of after minus before, paired by cluster, with a bootstrap over clusters.

    Raises:
        ValueError: no cluster is in both.
    """
    shared = sorted(before.keys() & after.keys())
    if not shared:
        raise ValueError("the two evaluations share no task")
    return _bootstrap(np.array([np.mean(after[name]) - np.mean(before[name]) for name in shared]), seed)


def _bootstrap(values: np.ndarray, seed: int) -> Interval:
    picks = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[picks].mean(1), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))
