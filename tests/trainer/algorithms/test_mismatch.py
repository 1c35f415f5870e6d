"""Sampler against trainer: the numbers are numpy's, and add over rows."""

import math

import numpy as np
import pytest
import torch

from trainer.algorithms.mismatch import MismatchSums

RANDOM = np.random.default_rng(0)
TRAIN = -RANDOM.exponential(1.0, 500)
ROLL = np.minimum(TRAIN + 0.1 * RANDOM.standard_normal(500), 0.0)


def metrics(*pairs):
    sums = MismatchSums.zero()
    for train, roll in pairs:
        sums.add(torch.tensor(train), torch.tensor(roll))
    return sums.metrics()


def test_against_numpy():
    p, q, ratio = np.exp(TRAIN), np.exp(ROLL), np.exp(TRAIN - ROLL)
    expected = {
        "training/rollout_actor_probs_pearson_corr": np.corrcoef(p, q)[0, 1],
        "training/rollout_probs_diff_mean": np.abs(p - q).mean(),
        "training/rollout_probs_diff_max": np.abs(p - q).max(),
        "training/rollout_probs_diff_std": np.abs(p - q).std(),
        "rollout_corr/kl": (ROLL - TRAIN).mean(),
        "rollout_corr/k3_kl": (ratio - np.log(ratio) - 1).mean(),
        "rollout_corr/chi2_token": (ratio**2).mean() - 1,
    }
    assert metrics((TRAIN, ROLL)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("cuts", [[100], [1, 2, 499], [0, 250]])
def test_rows_add_up(cuts):
    pairs = zip(np.split(TRAIN, cuts), np.split(ROLL, cuts), strict=True)
    assert metrics(*pairs) == pytest.approx(metrics((TRAIN, ROLL)), rel=1e-12)


def test_equal_policies():
    result = metrics((TRAIN, TRAIN))
    assert result["training/rollout_actor_probs_pearson_corr"] == pytest.approx(1.0)
    assert result["training/rollout_probs_diff_max"] == 0.0
    assert result["rollout_corr/kl"] == result["rollout_corr/chi2_token"] == 0.0


def test_a_constant_side_has_no_correlation():
    result = metrics((np.array([-0.5, -0.5]), np.array([-0.5, -0.5])))
    assert math.isnan(result["training/rollout_actor_probs_pearson_corr"])


def test_nothing_counted_gives_no_numbers():
    assert metrics() == {}
    assert metrics((np.array([]), np.array([]))) == {}


def test_the_trainers_side_carries_no_gradient():
    sums = MismatchSums.zero()
    sums.add(torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([-1.0, -2.0]))
    assert not sums.sums.requires_grad
