"""GRPO's and Dr.GRPO's advantages."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from support.advantages import assert_close, batches, estimate, make_inputs, members, to_inputs


def reference(batch, by_std):
    rows = []
    for rollout in batch:
        scores = [other.score for other in members(batch)[rollout.group]]
        if len(set(scores)) == 1:
            advantage = 0.0
        else:
            advantage = rollout.score - sum(scores) / len(scores)
            advantage /= statistics.stdev(scores) + 1e-6 if by_std else 1
        rows.append([advantage] * rollout.length)
    return rows


@examples(max_examples=60, deadline=None)
@given(batches(), st.booleans(), st.booleans())
def test_reference(batch, by_std, plain):
    if plain:
        batch = [type(r)(**{**vars(r), "penalties": [0.0] * r.length}) for r in batch]
    assert_close(estimate("grpo", to_inputs(batch, not plain), norm_adv_by_std=by_std), reference(batch, by_std))


def test_one_token_of_each_rollout_is_like_the_others():
    advantages = estimate("grpo", make_inputs([1.0, 0.0], ["g", "g"], [3, 2]), norm_adv_by_std=False).advantages
    assert advantages.tolist() == [0.5] * 3 + [-0.5] * 2


def test_groups_of_unequal_size_are_apart():
    inputs = make_inputs([1.0, 0.0, 1.0, 0.0, 0.0], ["a", "b", "b", "a", "b"], [1] * 5)
    advantages = estimate("grpo", inputs).advantages
    torch.testing.assert_close(advantages[[0, 3]], torch.tensor([0.5, -0.5]) / (0.5**0.5 + 1e-6))
    torch.testing.assert_close(advantages[[1, 2, 4]], torch.tensor([-1.0, 2.0, -1.0]) / 3 / ((1 / 3) ** 0.5 + 1e-6))


def test_a_group_of_one_gets_zero_and_never_its_raw_reward():
    assert estimate("grpo", make_inputs([1.0, 1.0, 0.0], ["alone", "g", "g"], [1] * 3)).advantages[0] == 0.0


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_equal_rewards_get_exactly_zero(reward):
    assert not estimate("grpo", make_inputs([reward] * 7, ["g"] * 7)).advantages.any()


def test_one_failed_of_eight_leaves_a_baseline_of_seven():
    rewards = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    mean, deviation = sum(rewards) / 7, statistics.stdev(rewards)
    expected = torch.tensor([(r - mean) / (deviation + 1e-6) for r in rewards])
    torch.testing.assert_close(estimate("grpo", make_inputs(rewards, ["g"] * 7, [1] * 7)).advantages, expected)


@examples(max_examples=40, deadline=None)
@given(batches(penalties=False))
def test_advantages_of_a_group_sum_to_zero(batch):
    inputs = to_inputs(batch, penalties=False)
    first_tokens = estimate("grpo", inputs).advantages[inputs.starts]
    assert inputs.sum_by_group(first_tokens).abs().max() < 1e-5
