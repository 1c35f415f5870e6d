"""pass@1 and pass@k of many tasks, with how many of them the number speaks of beside it.

A task's attempts are its rewards in the order in which they began, None for one that infrastructure spoiled: neither
solved nor failed. pass@1 is of first attempts alone; a spoiled one is not replaced by the next, so that a task that was
tried often has no better chance of being scored than another.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import comb
from typing import Any

from tasks.statistics.intervals import Interval, mean_of_all, wilson

KS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class TaskResult:
    """The attempts at one task. `cluster` is what it shares with related tasks, which are not independent of it."""

    cluster: str
    attempts: Sequence[float | None]
    repository: str | None = None
    difficulty: str | None = None

    @property
    def scored(self) -> list[float]:
        """Rewards of the attempts that count."""
        return [reward for reward in self.attempts if reward is not None]

    @property
    def first(self) -> float | None:
        """Reward of the first attempt; None if it was not scored, or not made."""
        return self.attempts[0] if self.attempts else None

    def to_json(self) -> dict[str, Any]:
        """For the record of an evaluation."""
        return asdict(self) | {"attempts": list(self.attempts)}


@dataclass(frozen=True)
class Rate:
    """A share of tasks. `scored` of `tasks` have what it takes to tell: that is its coverage.

    `bootstrap` is over clusters. `wilson`, which takes tasks as independent, is of shares that count whole tasks.
    """

    value: float
    scored: int
    tasks: int
    bootstrap: Interval
    wilson: Interval | None = None
    clusters: int = field(default=0, kw_only=True)

    @property
    def coverage(self) -> float:
        return self.scored / self.tasks

    @property
    def interval(self) -> Interval:
        """The one to be shown: the wider of the two, since each can be too narrow.

        Wilson's is where tasks are related; the bootstrap is where all clusters came out alike.
        """
        if self.wilson is None:
            return self.bootstrap
        return max(self.wilson, self.bootstrap, key=lambda interval: interval.high - interval.low)

    def to_json(self) -> dict[str, Any]:
        """For the record of an evaluation."""
        return asdict(self) | {"coverage": self.coverage, "low": self.interval.low, "high": self.interval.high}


def pass_at_k(attempts: int, solved: int, k: int) -> float:
    """Chance that at least one of `k` attempts solves a task, unbiased: 1 - C(n-c, k)/C(n, k).

    Chen et al., 2021 (arXiv:2107.03374).

    Raises:
        ValueError: fewer than `k` attempts.
    """
    if attempts < k:
        raise ValueError(f"pass@{k} needs {k} attempts, there are {attempts}")
    return 1.0 - comb(attempts - solved, k) / comb(attempts, k)


def first_attempts(results: Mapping[str, TaskResult]) -> Rate | None:
    """pass@1: the share of tasks that their first attempt solved, of those whose first attempt was scored."""
    values = {task: float(result.first == 1.0) for task, result in results.items() if result.first is not None}
    if not values:
        return None
    by_cluster = _by_cluster(results, values)
    interval = wilson(round(sum(values.values())), len(values))
    # tasks that all came out alike say no more than as many independent ones as there are clusters
    spread = mean_of_all(by_cluster)
    if spread.low == spread.high:
        spread = wilson(round(spread.mean * len(by_cluster)), len(by_cluster))
    return Rate(interval.mean, len(values), len(results), spread, interval, clusters=len(by_cluster))


def any_of_k(results: Mapping[str, TaskResult], k: int) -> Rate | None:
    """Mean of the unbiased pass@k over the tasks that have `k` scored attempts; None if none has."""
    values = {
        task: pass_at_k(len(result.scored), sum(reward == 1.0 for reward in result.scored), k)
        for task, result in results.items()
        if len(result.scored) >= k
    }
    if not values:
        return None
    by_cluster = _by_cluster(results, values)
    spread = mean_of_all(by_cluster)
    if spread.low == spread.high and spread.mean in (0.0, 1.0):
        spread = wilson(round(spread.mean * len(by_cluster)), len(by_cluster))
    return Rate(spread.mean, len(values), len(results), spread, clusters=len(by_cluster))


def rates(results: Mapping[str, TaskResult]) -> dict[int, Rate]:
    """pass@k by k: 1 from first attempts, then the powers of two up to the attempts that were made."""
    most = max((len(result.attempts) for result in results.values()), default=0)
    found = {1: first_attempts(results)} | {k: any_of_k(results, k) for k in KS if k <= most}
    return {k: rate for k, rate in found.items() if rate is not None}


def by_part(results: Mapping[str, TaskResult], name: str) -> dict[str, dict[str, TaskResult]]:
    """The tasks by their `repository` or `difficulty`; empty if fewer than two are told apart."""
    parts: dict[str, dict[str, TaskResult]] = defaultdict(dict)
    for task, result in results.items():
        parts[getattr(result, name) or "(not told)"][task] = result
    return dict(sorted(parts.items())) if len(parts) > 1 else {}


def _by_cluster(results: Mapping[str, TaskResult], values: Mapping[str, float]) -> dict[str, list[float]]:
    clusters: dict[str, list[float]] = defaultdict(list)
    for task, value in values.items():
        clusters[results[task].cluster].append(value)
    return dict(clusters)
