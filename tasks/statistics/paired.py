"""Two policies on the same tasks: by how much they differ, and whether that can be told from chance."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal

import numpy as np

from tasks.statistics.intervals import Interval, mean_of_all
from tasks.statistics.pass_rates import TaskResult

ALPHA = 0.05
DRAWS = 20_000
_EXACT_CLUSTERS = 14  # all 2^14 ways of signing that many
_EPSILON = 1e-9


@dataclass(frozen=True)
class Comparison:
    """What two evaluations say about each other, on the `paired` tasks that both scored; `tasks` are in both.

    `gain` is the second less the first, in share of attempts solved. `better` is None where no difference may be
    called, and `why` then says what stands against it.
    """

    test: Literal["McNemar, exact", "permutation, exact", "permutation"]
    paired: int
    tasks: int
    clusters: int
    won: int
    lost: int
    gain: Interval
    p_value: float
    better: Literal["first", "second"] | None
    why: str


def mcnemar(won: int, lost: int) -> float:
    """Two-sided exact p-value of McNemar's test: `won` and `lost` pairs differ, and are alike likely by chance."""
    differing = won + lost
    tail = sum(comb(differing, i) for i in range(min(won, lost) + 1))
    return float(min(1.0, 2 * tail / 2**differing))


def permutation(sums: Sequence[float], seed: int = 0, draws: int = DRAWS) -> float:
    """Two-sided p-value of the sum of paired differences, if each was as likely the other way round.

    All ways of turning them round are counted where there are few, else `draws` random ones, the one seen included;
    the p-value is then at least 1/(draws + 1).
    """
    values = np.array([value for value in sums if abs(value) > _EPSILON])
    seen = abs(values.sum())
    if len(values) <= _EXACT_CLUSTERS:
        codes = np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1
        totals = np.abs(((1 - 2 * codes) * values).sum(1))
        return float((totals >= seen - _EPSILON).mean())
    rng = np.random.default_rng(seed)
    extreme = 0
    for size in _chunks(draws):
        signs = rng.integers(0, 2, size=(size, len(values)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ values) >= seen - _EPSILON).sum())
    return (extreme + 1) / (draws + 1)


def compare(first: Mapping[str, TaskResult], second: Mapping[str, TaskResult], seed: int = 0) -> Comparison:
    """Compare the two on the tasks that are in both.

    One attempt at each of unrelated tasks: McNemar's exact test. Several attempts, or tasks that are related: a
    permutation test which turns whole clusters round. A difference is called only if its test and its interval agree,
    and if no outcome of the tasks that were not scored could turn it round.

    Raises:
        ValueError: no task is scored in both.
    """
    shared = sorted(first.keys() & second.keys())
    paired = [task for task in shared if first[task].scored and second[task].scored]
    if not paired:
        raise ValueError("no task is scored in both evaluations; evaluate both on the same index")
    single = all(len(results[task].attempts) == 1 for results in (first, second) for task in paired)
    change = {task: _mean(second[task]) - _mean(first[task]) for task in paired}
    clusters: dict[str, list[float]] = defaultdict(list)
    for task in paired:
        clusters[first[task].cluster].append(change[task])
    won = sum(value > _EPSILON for value in change.values())
    lost = sum(value < -_EPSILON for value in change.values())
    gain = mean_of_all(clusters, seed)
    sums = [sum(values) for values in clusters.values()]
    test: Literal["McNemar, exact", "permutation, exact", "permutation"]
    if single and len(clusters) == len(paired):
        test, p_value = "McNemar, exact", mcnemar(won, lost)
    else:
        few = sum(abs(value) > _EPSILON for value in sums) <= _EXACT_CLUSTERS
        test, p_value = "permutation, exact" if few else "permutation", permutation(sums, seed)
    why = _objection(first, second, shared, gain, p_value, sums)
    better: Literal["first", "second"] | None = None
    if not why:
        better = "second" if gain.mean > 0 else "first"
    return Comparison(test, len(paired), len(shared), len(clusters), won, lost, gain, p_value, better, why)


def _objection(
    first: Mapping[str, TaskResult],
    second: Mapping[str, TaskResult],
    shared: Sequence[str],
    gain: Interval,
    p_value: float,
    sums: Sequence[float],
) -> str:
    """Why no difference may be called; empty if one may."""
    differing = sum(abs(value) > _EPSILON for value in sums)
    if not differing:
        return "they did not differ on any task"
    smallest = 2 / 2**differing
    if smallest > ALPHA:
        return (
            f"they differ on {differing} independent tasks only: even if all pointed one way, chance would do that "
            f"with p = {smallest:.2g}; evaluate on more tasks"
        )
    if p_value > ALPHA:
        return f"chance alone would do as much with p = {p_value:.2g}"
    if gain.low <= 0 <= gain.high:
        return "its interval holds 0"
    sign = 1 if gain.mean > 0 else -1
    if sum(_least_gain(first[task], second[task], sign) for task in shared) <= 0:
        return "it could vanish, had the trials that were not scored come out otherwise; evaluate again for coverage"
    return ""


def _least_gain(first: TaskResult, second: TaskResult, sign: int) -> float:
    """The task's gain, times `sign`, if all attempts that were not scored had gone against it."""
    worst, best = (first, second) if sign < 0 else (second, first)
    return _mean(worst, 0.0) - _mean(best, 1.0)


def _mean(result: TaskResult, missing: float | None = None) -> float:
    """Share of attempts solved: of those scored, or with `missing` in the place of the others."""
    filled = result.scored if missing is None else [missing if x is None else x for x in result.attempts] or [missing]
    return sum(filled) / len(filled)


def _chunks(total: int, size: int = 2_000) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]
