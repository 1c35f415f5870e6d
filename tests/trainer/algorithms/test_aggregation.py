"""One normaliser: however rollouts are split over rows and ranks, the shares add up to the same loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.algorithms.aggregation import GlobalCounts, aggregate
from trainer.algorithms.policy_losses.base import LossInputs

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
LOSSES = {"a": [1.0, 3.0], "b": [5.0], "c": [-2.0, 0.0, 8.0]}
EXPECTED = {"token-mean": 15 / 6, "seq-mean-token-sum": 15 / 4, "seq-mean-token-mean": (2 + 5 + 2) / 4}
COUNTS = GlobalCounts(rollouts=4, tokens=6)
"""The fourth rollout has no gradient: it is counted, and in no row."""


def share(rollouts: list[list[float]], mode: str, counts: GlobalCounts) -> float:
    losses = torch.tensor([x for rollout in rollouts for x in rollout], dtype=torch.float64)
    owners = torch.tensor([i for i, rollout in enumerate(rollouts) for _ in rollout], dtype=torch.long)
    inputs = LossInputs(losses, losses, losses, owners, len(rollouts))
    return aggregate(losses, inputs, mode, counts).item()


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode):
    assert share(list(LOSSES.values()), mode, COUNTS) == pytest.approx(EXPECTED[mode])


@settings(deadline=None)
@given(
    rollouts=st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=8),
    places=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    mode=st.sampled_from(MODES),
)
def test_shares_of_any_split_add_up(rollouts, places, mode):
    counts = GlobalCounts(len(rollouts), sum(map(len, rollouts)))
    rows = [[r for r, place in zip(rollouts, places, strict=False) if place == i] for i in range(4)]
    whole = share(rollouts, mode, counts)
    assert sum(share(row, mode, counts) for row in rows if row) == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_row_adds_nothing(mode):
    assert share([], mode, COUNTS) == 0.0


def test_unknown_mode():
    with pytest.raises(ValueError, match="unknown loss aggregation 'mean'"):
        share([[1.0]], "mean", COUNTS)
