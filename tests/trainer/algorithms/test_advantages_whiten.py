"""Whitening over a batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from support.advantages import whitened

from trainer.algorithms.advantages import whiten as module
from trainer.algorithms.advantages.whiten import whiten, whiten_rollouts

NUMBERS = st.integers(-8, 8).map(lambda i: i / 8)


@pytest.mark.parametrize("part", [1, 3, 2**20])
def test_reference(monkeypatch, part):
    monkeypatch.setattr(module, "PART_TOKENS", part)

    @examples(max_examples=40, deadline=None)
    @given(st.lists(NUMBERS, max_size=20))
    def check(numbers):
        actual = whiten(torch.tensor(numbers, dtype=torch.float32))
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, torch.tensor(whitened([numbers])[0]), rtol=1e-5, atol=1e-5)

    check()


@examples(max_examples=40, deadline=None)
@given(st.lists(st.tuples(NUMBERS, st.integers(1, 5)), max_size=10))
def test_rollouts_count_as_often_as_they_have_tokens(rollouts):
    values = torch.tensor([value for value, _ in rollouts], dtype=torch.float64)
    lengths = torch.tensor([length for _, length in rollouts], dtype=torch.long)
    by_token = whiten(torch.repeat_interleave(values, lengths))
    by_rollout = torch.repeat_interleave(whiten_rollouts(values, lengths), lengths).float()
    torch.testing.assert_close(by_rollout, by_token, rtol=1e-5, atol=1e-5)


def test_published_example():
    """1, 2, 3 have mean 2 and an unbiased variance of 1."""
    torch.testing.assert_close(whiten(torch.tensor([1.0, 2.0, 3.0])), torch.tensor([-1.0, 0.0, 1.0]))


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -1e30])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_equal_values_become_exactly_zero(value, count):
    values = torch.full((count,), value)
    assert whiten(values).tolist() == [0.0] * count
    assert whiten_rollouts(values.double(), torch.full((count,), 3)).tolist() == [0.0] * count


def test_a_large_mean_does_not_drown_a_small_spread():
    values = torch.tensor([1000.0, 1000.25] * 500)
    torch.testing.assert_close(whiten(values), torch.tensor([-1.0, 1.0] * 500), rtol=2e-3, atol=0)
