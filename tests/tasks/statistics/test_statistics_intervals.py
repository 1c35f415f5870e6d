"""Intervals, against scipy and closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

from tasks.statistics.intervals import mean_of_all, wilson


@pytest.mark.parametrize(("solved", "scored"), [(0, 1), (1, 1), (0, 20), (20, 20), (3, 10), (240, 500), (1, 500)])
def test_wilson_is_scipys(solved, scored):
    expected = stats.binomtest(solved, scored).proportion_ci(0.95, method="wilson")
    found = wilson(solved, scored)
    assert found.mean == solved / scored
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize(("solved", "scored"), [(0, 0), (2, 1), (-1, 3)])
def test_no_share(solved, scored):
    with pytest.raises(ValueError, match="is no share"):
        wilson(solved, scored)


def test_wilson_covers_the_truth_about_as_often_as_it_says():
    chance, scored = 0.07, 40
    weights = stats.binom.pmf(range(scored + 1), scored, chance)
    covered = [interval.low <= chance <= interval.high for interval in (wilson(s, scored) for s in range(scored + 1))]
    assert 0.93 <= np.dot(weights, covered) <= 0.99


def test_values_weigh_the_same_whatever_cluster_they_are_in():
    assert mean_of_all({"a": [1.0] * 3, "b": [0.0], "empty": []}).mean == 0.75


def test_the_bootstrap_of_single_values_is_that_of_scipy():
    values = np.random.default_rng(3).normal(size=60)
    found = mean_of_all({str(i): [x] for i, x in enumerate(values)})
    expected = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.02)


def test_related_values_make_the_interval_wider():
    """Ten clusters of nine equal values know as much as ten values do."""
    values = [float(i % 2) for i in range(10)]
    single = mean_of_all({str(i): [x] for i, x in enumerate(values)})
    nine = mean_of_all({str(i): [x] * 9 for i, x in enumerate(values)})
    assert nine == single
    apart = mean_of_all({f"{i}-{j}": [x] for i, x in enumerate(values) for j in range(9)})
    assert (nine.high - nine.low) / (apart.high - apart.low) == pytest.approx(3, rel=0.1)
    assert nine.high - nine.low == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(10), rel=0.1)


def test_no_values():
    with pytest.raises(ValueError, match="no values"):
        mean_of_all({"a": []})
