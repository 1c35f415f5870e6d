"""The optimal token baseline."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from support.advantages import assert_close, batches, estimate, make_inputs, members, to_inputs

from trainer.algorithms.advantages import optimal_token_baseline


@pytest.fixture(params=[1, 7, 2**18])
def part(request, monkeypatch):
    """Parts of a few tokens put several of them into a small batch."""
    monkeypatch.setattr(optimal_token_baseline, "PART_TOKENS", request.param)


def to_go(rollout, t):
    return rollout.reward - sum(rollout.penalties[t:])


def weight(rollout, t):
    norms = [1 - 2 * math.exp(p) + s for p, s in zip(rollout.logprobs, rollout.squares, strict=True)]
    return sum(max(norm, 0.0) for norm in norms[: t + 1]) + 1e-8


def reference(batch):
    rows = []
    for rollout in batch:
        row = []
        for t in range(rollout.length):
            reached = [other for other in members(batch)[rollout.group] if other.length > t]
            total = sum(weight(other, t) for other in reached)
            baseline = sum(to_go(other, t) * weight(other, t) for other in reached) / total
            row.append(to_go(rollout, t) - baseline if len(reached) > 1 else 0.0)
        rows.append(row)
    return rows


@pytest.mark.parametrize("penalties", [False, True])
def test_reference(part, penalties):
    @examples(max_examples=40, deadline=None)
    @given(batches(penalties))
    def check(batch):
        assert_close(estimate("optimal_token_baseline", to_inputs(batch, penalties)), reference(batch))

    check()


def columns(probabilities):
    """Two tokens to choose from: the other one has the rest of the probability."""
    return {
        "old_logprobs": [math.log(p) for p in probabilities],
        "sum_pi_squared": [p**2 + (1 - p) ** 2 for p in probabilities],
    }


def test_by_hand():
    """2(1-p)^2 gathers to 0.5, 1 and to 0.02, 0.5; the third token of the first rollout has nobody to compare with."""
    inputs = make_inputs([1.0, 0.0], ["g", "g"], [3, 2], **columns([0.5, 0.5, 0.5, 0.9, 1 - 0.24**0.5]))
    advantages = estimate("optimal_token_baseline", inputs).advantages
    first, second = 0.5 / 0.52, 1.0 / 1.5
    expected = torch.tensor([1 - first, 1 - second, 0.0, -first, -second])
    torch.testing.assert_close(advantages, expected, rtol=1e-5, atol=1e-5)


def test_certain_members_weigh_the_same_and_get_no_raw_reward():
    inputs = make_inputs([1.0, 0.0], ["g", "g"], [1, 1], **columns([1.0, 1.0]))
    torch.testing.assert_close(estimate("optimal_token_baseline", inputs).advantages, torch.tensor([0.5, -0.5]))


def test_a_norm_rounded_below_zero_weighs_nothing():
    """The baseline is a mean of returns in any case, and no advantage is larger than their difference."""
    inputs = make_inputs([1.0, 0.0], ["g", "g"], [1, 1], old_logprobs=[0.0, 0.0], sum_pi_squared=[1 - 2e-7, 1 + 2e-7])
    advantages = estimate("optimal_token_baseline", inputs).advantages
    assert 0.9 < advantages[0] <= 1.0 and -0.1 < advantages[1] <= 0.0


def test_numbers_of_groups_may_have_gaps(part):
    inputs = make_inputs([1.0, 0.0], ["g", "g"], [9, 9], **columns([0.5] * 18))
    inputs.group_index.fill_(3)
    assert estimate("optimal_token_baseline", inputs).advantages.tolist() == [0.5] * 9 + [-0.5] * 9


@pytest.mark.parametrize("column", ["old_logprobs", "sum_pi_squared"])
def test_a_missing_column_is_named(column):
    given = columns([0.5, 0.5])
    del given[column]
    with pytest.raises(ValueError, match=f"{column} is missing"):
        estimate("optimal_token_baseline", make_inputs([1.0, 0.0], ["g", "g"], [1, 1], **given))
