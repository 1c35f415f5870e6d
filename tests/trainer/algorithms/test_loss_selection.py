"""Clip-Cov and KL-Cov choose tokens over the whole mini-batch, before it is cut into rows."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.losses import make_config, make_inputs

from trainer.algorithms.policy_losses.clip_cov import clip_cov, select_clip_cov
from trainer.algorithms.policy_losses.kl_cov import kl_cov, select_kl_cov
from trainer.algorithms.registry import POLICY_LOSSES


def covariances(advantages: list[float], logprobs: list[float]) -> list[float]:
    mean_a, mean_l = sum(advantages) / len(advantages), sum(logprobs) / len(logprobs)
    return [(a - mean_a) * (x - mean_l) for a, x in zip(advantages, logprobs, strict=True)]


def random_tokens(count: int, seed: int) -> tuple[list[float], list[float]]:
    rng = random.Random(seed)
    return [rng.gauss(0, 1.5) for _ in range(count)], [-rng.expovariate(0.5) for _ in range(count)]


def columns(*tokens: list[float]) -> list[torch.Tensor]:
    return [torch.tensor(column, dtype=torch.float64) for column in tokens]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(0, 10**6), st.sampled_from([1e-4, 0.05, 0.3, 0.9]))
def test_kl_cov_takes_the_highest(count, seed, share):
    advantages, logprobs = random_tokens(count, seed)
    chosen = select_kl_cov(*columns(advantages, logprobs), make_config(kl_cov_ratio=share), seed)
    expected = covariances(advantages, logprobs)
    taken = [expected[t] for t in chosen.nonzero()[:, 0].tolist()]
    # by value: of two tokens, say, both have the same covariance, and rounding decides
    highest = sorted(expected, reverse=True)[: max(1, int(share * count))]
    assert sorted(taken, reverse=True) == pytest.approx(highest, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(0, 10**6), st.sampled_from([1e-4, 0.05, 0.3, 0.9]))
def test_clip_cov_draws_from_the_band(count, seed, share):
    advantages, logprobs = random_tokens(count, seed)
    config = make_config(clip_cov_ratio=share, clip_cov_low=0.5, clip_cov_high=3.0)
    chosen = select_clip_cov(*columns(advantages, logprobs), config, seed)
    band = {t for t, cov in enumerate(covariances(advantages, logprobs)) if 0.5 <= cov <= 3.0}
    assert set(chosen.nonzero()[:, 0].tolist()) <= band
    assert int(chosen.sum()) == min(max(1, int(share * count)), len(band))


def test_clip_cov_draws_by_its_own_generator():
    advantages, logprobs = columns(*random_tokens(400, 0))
    config = make_config(clip_cov_ratio=0.02)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = select_clip_cov(advantages, logprobs, config, 5)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(select_clip_cov(advantages, logprobs, config, 5), first)
    assert not torch.equal(select_clip_cov(advantages, logprobs, config, 6), first)


def test_clip_cov_reaches_the_ends_of_its_band():
    """Covariances are 1, 0, 0, -1 around means of 0 and -2: both bounds belong to the band."""
    advantages, logprobs = torch.tensor([1.0, 0.0, 1.0, -2.0]), torch.tensor([-1.0, -2.0, -2.0, -3.0])
    for low, high in ((1.0, 1.5), (0.5, 1.0)):
        config = make_config(clip_cov_ratio=0.9, clip_cov_low=low, clip_cov_high=high)
        assert select_clip_cov(advantages, logprobs, config, 0).tolist() == [True, False, False, False]


def test_of_equal_tokens_kl_cov_takes_the_first():
    chosen = select_kl_cov(torch.ones(5), torch.full((5,), -1.0), make_config(kl_cov_ratio=0.5), 0)
    assert chosen.tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("select", [select_clip_cov, select_kl_cov])
def test_no_tokens(select):
    chosen = select(torch.zeros(0), torch.zeros(0), make_config(), 0)
    assert chosen.shape == (0,) and chosen.dtype == torch.bool


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_the_learner_must_choose_first(name):
    entry = POLICY_LOSSES[name]
    assert "old_logprobs" in entry.needs
    with pytest.raises(ValueError, match=f"'{name}' got selected=None; call its `select`"):
        entry.function(replace(make_inputs(), selected=None), make_config())


def test_clip_cov_selected_tokens_learn_nothing():
    inputs = make_inputs(spread=0.05)
    outputs = clip_cov(inputs, make_config())
    (gradient,) = torch.autograd.grad(outputs.losses.sum(), inputs.logprobs)
    assert torch.equal(gradient == 0, inputs.selected)
    assert torch.equal(outputs.metrics["actor/pg_clipfrac"].bool(), inputs.selected)
    assert torch.equal(outputs.metrics["actor/cov_selected"].bool(), inputs.selected)


def test_kl_cov_pulls_selected_tokens_back():
    inputs = make_inputs(spread=0.5)
    weak, strong = (kl_cov(inputs, make_config(kl_cov_coef=coef)).losses for coef in (1.0, 3.0))
    (pull,) = torch.autograd.grad((strong - weak).sum(), inputs.logprobs)
    direction = (inputs.logprobs - inputs.old_logprobs).detach().sign()
    torch.testing.assert_close(pull, 2 * direction * inputs.selected)
