"""One normaliser: however rollouts are split over rows and ranks, the shares add up to the same loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.losses import make_config

from trainer.algorithms.aggregation import GlobalCounts, aggregate
from trainer.algorithms.policy_losses.base import mean_per_sample
from trainer.algorithms.registry import LOSS_AGGREGATIONS

HORIZON = 10
LOSSES = {"a": [1.0, 3.0], "b": [5.0], "c": [-2.0, 0.0, 8.0]}
EXPECTED = {
    "token-mean": 15 / 6,
    "token-sum": 15,
    "seq-mean-token-sum": 15 / 4,
    "seq-mean-token-sum-norm": 15 / 4 / HORIZON,
    "seq-mean-token-mean": (2 + 5 + 2) / 4,
}
COUNTS = GlobalCounts(rollouts=4, tokens=6)
"""The fourth rollout has no gradient: it is counted, and in no row."""


def share(rollouts: list[list[float]], mode: str, counts: GlobalCounts) -> float:
    losses = torch.tensor([x for rollout in rollouts for x in rollout], dtype=torch.float64)
    owners = torch.tensor([i for i, rollout in enumerate(rollouts) for _ in rollout], dtype=torch.long)
    config = make_config(loss_agg=mode, loss_horizon=HORIZON)
    return aggregate(losses, owners, len(rollouts), counts, config).item()


def test_every_mode_has_an_example():
    assert set(EXPECTED) == set(LOSS_AGGREGATIONS)


@pytest.mark.parametrize("mode", EXPECTED)
def test_modes(mode):
    assert share(list(LOSSES.values()), mode, COUNTS) == pytest.approx(EXPECTED[mode])


def slow(rollouts: list[list[float]], mode: str) -> float:
    """Over all rollouts at once, in plain Python."""
    tokens = [x for rollout in rollouts for x in rollout]
    sums = [sum(rollout) for rollout in rollouts]
    return {
        "token-mean": sum(tokens) / len(tokens),
        "token-sum": sum(tokens),
        "seq-mean-token-sum": sum(sums) / len(sums),
        "seq-mean-token-sum-norm": sum(x / HORIZON for x in sums) / len(sums),
        "seq-mean-token-mean": sum(x / len(r) for x, r in zip(sums, rollouts, strict=True)) / len(sums),
    }[mode]


@settings(deadline=None, max_examples=60)
@given(
    rollouts=st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=8),
    places=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    mode=st.sampled_from(sorted(EXPECTED)),
)
def test_shares_of_any_split_add_up(rollouts, places, mode):
    counts = GlobalCounts(len(rollouts), sum(map(len, rollouts)))
    rows = [[r for r, place in zip(rollouts, places, strict=False) if place == i] for i in range(4)]
    assert sum(share(row, mode, counts) for row in rows) == pytest.approx(slow(rollouts, mode), abs=1e-9)


@pytest.mark.parametrize("mode", EXPECTED)
def test_an_empty_row_adds_nothing(mode):
    assert share([], mode, COUNTS) == 0.0
    assert share([], mode, GlobalCounts(0, 0)) == 0.0


def test_unknown_mode():
    with pytest.raises(ValueError, match="loss_agg is 'mean'; known are seq-mean"):
        share([[1.0]], "mean", COUNTS)


def test_a_constant_horizon_must_be_given():
    config = make_config(loss_agg="seq-mean-token-sum-norm", loss_horizon=None)
    with pytest.raises(ValueError, match="set loss_horizon to a constant number of tokens"):
        aggregate(torch.ones(1), torch.zeros(1, dtype=torch.long), 1, COUNTS, config)


def test_means_of_long_rollouts_are_not_blurred():
    """GSPO's bounds are 1e-4 wide: a mean of float32 summed in float32 would be off by a part of them."""
    values = torch.full((200_000,), 1e-4)
    mean = mean_per_sample(values, torch.zeros(200_000, dtype=torch.long), 1)
    assert mean.dtype == torch.float32
    assert mean.item() == values[0].item()


def test_a_rollout_without_tokens_has_mean_zero():
    assert mean_per_sample(torch.tensor([2.0, 4.0]), torch.tensor([1, 1]), 3).tolist() == [0.0, 3.0, 0.0]
