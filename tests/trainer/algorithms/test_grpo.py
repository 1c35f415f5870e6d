"""Advantages within groups, keyed by group id."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.algorithms.advantages.grpo import grpo


def test_formula():
    rewards = [1.0, 0.0, 0.0, 1.0, 0.5]
    deviation = np.std(rewards, ddof=1)
    expected = (np.array(rewards) - 0.5) / (deviation + 1e-6)
    np.testing.assert_allclose(grpo(np.array(rewards), ["g"] * 5), expected, rtol=1e-12)


def test_without_division_by_the_deviation():
    np.testing.assert_allclose(grpo(np.array([1.0, 0.0]), ["g", "g"], norm_by_std=False), [0.5, -0.5], rtol=0)


def test_groups_of_unequal_size_are_apart():
    rewards, groups = np.array([1.0, 0.0, 1.0, 0.0, 0.0]), ["a", "b", "b", "a", "b"]
    advantages = grpo(rewards, groups)
    np.testing.assert_allclose(advantages[[0, 3]], grpo(np.array([1.0, 0.0]), ["a", "a"]))
    np.testing.assert_allclose(advantages[[1, 2, 4]], grpo(np.array([0.0, 1.0, 0.0]), ["b"] * 3))


def test_a_group_of_one_gets_zero():
    assert grpo(np.array([1.0, 1.0, 0.0]), ["alone", "g", "g"])[0] == 0.0


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_get_exactly_zero(reward):
    assert (grpo(np.full(7, reward), ["g"] * 7) == 0.0).all()


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_raises(reward):
    with pytest.raises(ValueError, match="rewards must be finite"):
        grpo(np.array([0.0, reward]), ["g", "g"])


def test_one_failed_of_eight_leaves_a_baseline_of_seven():
    rewards = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    mean, deviation = rewards.sum() / 7, math.sqrt(((rewards - rewards.sum() / 7) ** 2).sum() / 6)
    np.testing.assert_allclose(grpo(rewards, ["g"] * 7), (rewards - mean) / (deviation + 1e-6), rtol=1e-12)


def test_no_rollouts():
    assert grpo(np.array([]), []).shape == (0,)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=24),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_order_does_not_matter_and_groups_sum_to_zero(rollouts, random, by_std):
    groups, rewards = [g for g, _ in rollouts], np.array([r for _, r in rollouts])
    advantages = grpo(rewards, groups, norm_by_std=by_std)
    order = list(range(len(rollouts)))
    random.shuffle(order)
    shuffled = grpo(rewards[order], [groups[i] for i in order], norm_by_std=by_std)
    np.testing.assert_allclose(shuffled, advantages[order], atol=1e-9)
    for group in set(groups):
        assert abs(sum(a for a, g in zip(advantages, groups, strict=True) if g == group)) < 1e-9
