"""Karmarkar and Karp's differencing: every piece once, loads about equal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.learner.balance import balance


@settings(deadline=None)
@given(costs=st.lists(st.integers(1, 1000), max_size=40), parts=st.integers(1, 8))
def test_every_piece_is_in_one_part(costs, parts):
    found = balance(costs, parts)
    assert len(found) == parts
    assert sorted(place for part in found for place in part) == list(range(len(costs)))
    loads = [sum(costs[i] for i in part) for part in found]
    assert max(loads) - min(loads) <= max(costs, default=0)


def test_better_than_the_lightest_rank_first():
    """Longest first to the lightest gives 8 + 5 + 4 = 17 against 7 + 6 = 13."""
    costs = [8, 7, 6, 5, 4]
    assert sorted(sum(costs[i] for i in part) for part in balance(costs, 2)) == [14, 16]


@pytest.mark.parametrize("parts", [2, 4])
def test_many_pieces_come_out_nearly_even(parts):
    costs = [100 + 37 * i % 61 for i in range(64)]
    loads = [sum(costs[i] for i in part) for part in balance(costs, parts)]
    assert max(loads) - min(loads) < min(costs) / 10
