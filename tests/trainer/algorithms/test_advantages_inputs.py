"""What an estimator sees of a batch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from support.advantages import make_inputs

from trainer.algorithms.advantages import base
from trainer.algorithms.advantages.base import number_groups, split


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_must_be_finite(number):
    with pytest.raises(ValueError, match="reward: 2 finite numbers"):
        make_inputs([0.0, number], ["g", "g"])
    with pytest.raises(ValueError, match="style: 2 finite numbers"):
        make_inputs([0.0, 0.0], ["g", "g"], named_rewards={"style": torch.tensor([0.0, number])})
    with pytest.raises(ValueError, match="baseline: 2 finite numbers"):
        make_inputs([0.0, 0.0], ["g", "g"], baselines=torch.tensor([number, 0.0]))
    for column in ("penalties", "values", "old_logprobs", "sum_pi_squared"):
        with pytest.raises(ValueError, match=f"{column}: some of the 2 numbers are NaN or infinite"):
            make_inputs([0.0], ["g"], [2], **{column: [0.0, number]})


def test_counts_must_fit():
    with pytest.raises(ValueError, match="2 rewards, 1 group ids"):
        make_inputs([0.0, 1.0], ["g"])
    with pytest.raises(ValueError, match="baseline: 2 finite numbers are needed"):
        make_inputs([0.0, 1.0], ["g", "g"], baselines=torch.zeros(3))
    with pytest.raises(ValueError, match="values: 3 entries for 4 sampled tokens"):
        make_inputs([0.0, 1.0], ["g", "g"], [2, 2], values=[0.0] * 3)


def test_a_rollout_without_sampled_tokens_has_no_place():
    with pytest.raises(ValueError, match="filter it"):
        make_inputs([0.0, 1.0], ["g", "g"], [2, 0])


def test_groups_go_by_id():
    assert number_groups(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]


def test_score_is_the_reward_less_the_penalties():
    inputs = make_inputs([1.0, 0.5], ["g", "g"], [2, 1], penalties=[0.25, 0.25, 1.0])
    assert inputs.scores.tolist() == [0.5, -0.5] and inputs.scores.dtype == torch.float64


@examples(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 20))
def test_split_covers_all_within_the_limit(sizes, limit):
    slices = list(split(torch.tensor(sizes, dtype=torch.long), limit))
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(len(sizes)))
    for s in slices:
        assert s.stop - s.start == 1 or sum(sizes[s]) <= limit


def test_sums_do_not_depend_on_the_parts(monkeypatch):
    inputs = make_inputs([0.0] * 4, ["g"] * 4, [1, 3, 2, 1])
    values = torch.arange(7.0)
    whole = inputs.sum_by_rollout(values)
    monkeypatch.setattr(base, "PART_TOKENS", 3)
    assert inputs.sum_by_rollout(values).tolist() == whole.tolist() == [0.0, 6.0, 9.0, 6.0]
