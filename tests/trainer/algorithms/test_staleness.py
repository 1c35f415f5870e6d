"""Ages of tokens at the time they are trained on, and what those beyond the bound weigh."""

import numpy as np
import pytest

from trainer.algorithms.staleness import (
    StalenessConfig,
    StaleTokens,
    age_metrics,
    age_warnings,
    age_weights,
    ages,
)

WEIGHED = StalenessConfig(max_staleness=1, too_old="down_weight", too_old_weight=0.5)


def test_ages_count_from_the_version_that_is_about_to_be_updated():
    assert ages(np.array([3, 5, 4]), 5).tolist() == [2, 0, 1]


def test_a_token_of_the_future_is_an_error():
    with pytest.raises(StaleTokens, match="weight version 6, but version 5 is to be updated"):
        ages(np.array([5, 6]), 5)


def test_within_the_bound_tokens_weigh_1_and_beyond_it_less_for_each_version():
    assert age_weights(np.array([0, 1, 2, 3]), WEIGHED).tolist() == [1.0, 1.0, 0.5, 0.25]
    masked = StalenessConfig(max_staleness=1, too_old="down_weight")
    assert age_weights(np.array([0, 1, 2, 3]), masked).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_token_whose_group_should_have_been_dropped_is_an_error():
    config = StalenessConfig(max_staleness=1)
    assert age_weights(np.array([0, 1]), config).tolist() == [1.0, 1.0]
    with pytest.raises(StaleTokens, match=r"2 weight versions old, and staleness\.max_staleness is 1"):
        age_weights(np.array([2]), config)


def test_metrics_tell_the_share_of_each_age_and_the_oldest_that_is_trained():
    masked = StalenessConfig(max_staleness=1, too_old="down_weight")
    metrics = age_metrics(np.array([0, 0, 1, 3]), masked)
    assert [metrics[f"staleness/age_share/{age}"] for age in range(4)] == [0.5, 0.25, 0.0, 0.25]
    assert (metrics["staleness/age/mean"], metrics["staleness/age/max"]) == (1.0, 3.0)
    assert metrics["staleness/trained_age/max"] == 1.0 and metrics["staleness/down_weighted"] == 0.25
    assert age_metrics(np.array([], dtype=int), masked) == {}


def test_what_is_lost_to_age_is_told():
    assert age_warnings({"staleness/dropped_groups": 0.0, "staleness/down_weighted": 0.0}, WEIGHED) == []
    (dropped,) = age_warnings({"staleness/dropped_groups": 2.0}, StalenessConfig())
    assert dropped.startswith("2 groups had tokens more than staleness.max_staleness of 1")
    (weighed,) = age_warnings({"staleness/down_weighted": 0.25}, WEIGHED)
    assert weighed.startswith("25% of the tokens") and "weigh 0.5 for each version" in weighed
