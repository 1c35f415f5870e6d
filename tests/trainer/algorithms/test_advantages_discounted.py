"""Estimators with a recursion over time steps: GAE, REINFORCE++ and ReMax."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from support.advantages import assert_close, batches, estimate, make_inputs, to_inputs, whitened

from trainer.algorithms.advantages import base, discount
from trainer.algorithms.advantages.discount import discounted_sums

FACTORS = st.sampled_from([1.0, 0.99, 0.5, 1e-3])


@pytest.fixture(params=[2, 32])
def row(request, monkeypatch):
    """Rows of 2 tokens put several levels of the sum into a short rollout."""
    monkeypatch.setattr(discount, "ROW", request.param)


@pytest.fixture(params=[1, 7, 2**18])
def part(request, monkeypatch):
    """Parts of a few tokens put several of them into a small batch."""
    monkeypatch.setattr(base, "PART_TOKENS", request.param)


def token_rewards(rollout):
    rewards = [-p for p in rollout.penalties]
    rewards[-1] += rollout.reward
    return rewards


def returns(rewards, gamma):
    following, out = 0.0, []
    for reward in reversed(rewards):
        following = reward + gamma * following
        out.append(following)
    return out[::-1]


def gae(rollout, gamma, lam):
    following, out = 0.0, []
    values = [*rollout.values, 0.0]
    for t in reversed(range(rollout.length)):
        delta = token_rewards(rollout)[t] + gamma * values[t + 1] - values[t]
        following = delta + gamma * lam * following
        out.append(following)
    return out[::-1]


# Fixtures that change constants hold for all examples of a test, which is why each test defines its own `check`.
def test_gae_reference(row, part):
    @examples(max_examples=40, deadline=None)
    @given(batches(longest=9), FACTORS, st.sampled_from([1.0, 0.95, 0.5, 0.0]), st.booleans())
    def check(batch, gamma, lam, plain):
        if plain:
            batch = [type(r)(**{**vars(r), "penalties": [0.0] * r.length}) for r in batch]
        actual = estimate("gae", to_inputs(batch, not plain), gamma=gamma, lam=lam)
        rows = [gae(rollout, gamma, lam) for rollout in batch]
        assert_close(actual, whitened(rows), tolerance=1e-4)
        targets = [a + v for row, r in zip(rows, batch, strict=True) for a, v in zip(row, r.values, strict=True)]
        assert actual.returns.dtype == torch.float32
        torch.testing.assert_close(actual.returns, torch.tensor(targets), rtol=1e-5, atol=1e-5)

    check()


def test_reinforce_plus_plus_reference(row, part):
    @examples(max_examples=40, deadline=None)
    @given(batches(longest=9), FACTORS)
    def check(batch, gamma):
        expected = whitened([returns(token_rewards(rollout), gamma) for rollout in batch])
        assert_close(estimate("reinforce_plus_plus", to_inputs(batch), gamma=gamma), expected, tolerance=1e-4)

    check()


def test_remax_reference(row, part):
    @examples(max_examples=40, deadline=None)
    @given(batches(longest=9), st.booleans())
    def check(batch, plain):
        if plain:
            batch = [type(r)(**{**vars(r), "penalties": [0.0] * r.length}) for r in batch]
        expected = [[g - r.baseline for g in returns(token_rewards(r), 1.0)] for r in batch]
        assert_close(estimate("remax", to_inputs(batch, not plain)), expected)

    check()


@pytest.mark.parametrize("gamma", [1.0, 0.999, 0.9])
def test_long_rollouts_of_any_length_around_a_row(gamma):
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 31, 32, 33, 1023, 1024, 1025, 9000, 2]
    values = torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
    expected = [x for row in values.split(lengths) for x in returns(row.tolist(), gamma)]
    actual = discounted_sums(values, torch.tensor(lengths), gamma)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def test_gae_by_hand():
    """gamma 0.5, lambda 1: the return of a token is its reward and half of the next return, whatever the values."""
    inputs = make_inputs([2.0, 3.0], ["a", "b"], [3, 2], values=[5, 6, 7, 9, 2], penalties=[-1, -1, 0, -2, 0])
    result = estimate("gae", inputs, gamma=0.5, lam=1.0)
    torch.testing.assert_close(result.returns, torch.tensor([2.0, 2.0, 2.0, 3.5, 3.0]))
    before = [[2.0 - 5, 2.0 - 6, 2.0 - 7], [3.5 - 9, 3.0 - 2]]
    torch.testing.assert_close(result.advantages, torch.tensor([x for row in whitened(before) for x in row]))


def test_lambda_of_zero_leaves_the_temporal_difference():
    inputs = make_inputs([2.0], ["a"], [3], values=[4, 5, 6], penalties=[-1, -1, 0])
    assert estimate("gae", inputs, gamma=1.0, lam=0.0).returns.tolist() == [6.0, 7.0, 2.0]


def test_a_perfect_critic_leaves_no_advantage():
    inputs = make_inputs([1.0, 0.0], ["a", "a"], [2, 3], values=[1, 1, 0, 0, 0])
    result = estimate("gae", inputs)
    assert not result.advantages.any() and result.returns.tolist() == [1, 1, 0, 0, 0]


def test_the_discount_reaches_over_tokens_of_its_own_rollout_only():
    inputs = make_inputs([0.0, 1.0], ["a", "b"], [2, 2])
    advantages = estimate("reinforce_plus_plus", inputs, gamma=0.5).advantages
    expected = torch.tensor(whitened([[0.0, 0.0], [0.5, 1.0]])).flatten()
    torch.testing.assert_close(advantages, expected)


@pytest.mark.parametrize(("name", "column"), [("gae", "values"), ("remax", "baselines")])
def test_a_missing_column_is_named(name, column):
    with pytest.raises(ValueError, match=f"{column} is missing"):
        estimate(name, make_inputs([1.0, 0.0], ["g", "g"]))
