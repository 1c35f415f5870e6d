"""How far a share or a mean may be from the truth: 95 % intervals, by formula and by resampling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

RESAMPLES = 10_000
_AT_ONCE = 1_000  # of these: an index of tens of thousands of tasks must fit into memory
_Z = 1.959963984540054  # 97.5 % of a standard normal lies below


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def wilson(solved: int, scored: int) -> Interval:
    """Wilson's score interval of a share; it is right for few trials, and for shares of 0 and 1 too.

    It takes the trials as independent: one each of unrelated tasks.

    Raises:
        ValueError: nothing was scored, or more was solved than scored.
    """
    if not 0 <= solved <= scored or not scored:
        raise ValueError(f"{solved} of {scored} is no share; it takes at least one trial, and no more solved than that")
    share = solved / scored
    shrink = 1 + _Z**2 / scored
    middle = (share + _Z**2 / (2 * scored)) / shrink
    half = _Z / shrink * sqrt(share * (1 - share) / scored + _Z**2 / (4 * scored**2))
    return Interval(
        share, max(0.0, middle - half) if solved else 0.0, min(1.0, middle + half) if solved < scored else 1.0
    )


def mean_of_all(clusters: Mapping[str, Sequence[float]], seed: int = 0) -> Interval:
    """Mean of all values, each of the same weight, with a bootstrap over the clusters that they come in.

    Raises:
        ValueError: there are no values.
    """
    filled = [values for values in clusters.values() if len(values)]
    if not filled:
        raise ValueError("there are no values to take the mean of")
    sums = np.array([np.sum(values) for values in filled])
    counts = np.array([len(values) for values in filled])
    return _bootstrap(sums, counts, seed)


def mean_interval(clusters: Mapping[str, Sequence[float]], seed: int = 0) -> Interval:
    """Mean of the cluster means, with a bootstrap over clusters: attempts at one function are not independent."""
    means = np.array([np.mean(values) for values in clusters.values()])
    return _bootstrap(means, np.ones(len(means)), seed)


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
    gains = np.array([np.mean(after[name]) - np.mean(before[name]) for name in shared])
    return _bootstrap(gains, np.ones(len(gains)), seed)


def _bootstrap(sums: np.ndarray, counts: np.ndarray, seed: int) -> Interval:
    """Interval of the sum of `sums` over that of `counts`, both [clusters], when clusters are drawn anew."""
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(RESAMPLES // _AT_ONCE):
        picks = rng.integers(0, len(sums), size=(_AT_ONCE, len(sums)))
        draws.append(sums[picks].sum(1) / counts[picks].sum(1))
    low, high = np.quantile(np.concatenate(draws), [0.025, 0.975])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))
