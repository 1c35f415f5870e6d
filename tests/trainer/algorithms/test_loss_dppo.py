"""DPPO: the examples that the authors document, where a ratio misjudges how far the policy moved."""

import math

import pytest
import torch
from support.losses import make_config

from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs
from trainer.algorithms.policy_losses.dppo_kl import dppo_kl
from trainer.algorithms.policy_losses.dppo_tv import dppo_tv
from trainer.algorithms.policy_losses.ppo import ppo

TV = make_config(clip_ratio_low=0.15, clip_ratio_high=0.15, clip_ratio_c=1e4)
KL = make_config(clip_ratio_low=0.05, clip_ratio_high=0.05, clip_ratio_c=1e4)


def token(old: float, new: float, advantage: float) -> LossInputs:
    return LossInputs(
        torch.tensor([new], dtype=torch.float64).log().requires_grad_(),
        torch.tensor([old], dtype=torch.float64).log(),
        torch.tensor([advantage], dtype=torch.float64),
        torch.zeros(1, dtype=torch.long), 1,
    )  # fmt: skip


def masked(outputs: LossOutputs) -> bool:
    return bool(outputs.metrics["actor/pg_clipfrac"].item())


@pytest.mark.parametrize(("loss", "config"), [(dppo_tv, TV), (dppo_kl, KL)])
@pytest.mark.parametrize(
    ("old", "new", "advantage", "expected"),
    [
        (1e-5, 1e-3, 1.0, False),  # verl's DPPO example: a ratio of 100, a negligible divergence
        (0.99, 0.8, -1.0, True),  # verl's DPPO example: a ratio in PPO's bounds, a catastrophic shift
        (0.99, 0.8, 1.0, False),  # the advantage pulls back
        (0.8, 0.99, 1.0, True),
        (0.8, 0.99, -1.0, False),
        (0.5, 0.5, 1.0, False),
        (0.3, 0.9, 0.0, False),
    ],
)
def test_trust_region(loss, config, old, new, advantage, expected):
    inputs = token(old, new, advantage)
    outputs = loss(inputs, config)
    assert masked(outputs) == expected
    (gradient,) = torch.autograd.grad(outputs.losses.sum(), inputs.logprobs)
    assert gradient.item() == pytest.approx(0.0 if expected else -advantage * new / old)


def test_ppo_judges_the_documented_examples_the_other_way_round():
    config = make_config(clip_ratio_low=0.2, clip_ratio_high=0.28)
    assert masked(ppo(token(1e-5, 1e-3, 1.0), config))
    assert not masked(ppo(token(0.99, 0.8, -1.0), config))


@pytest.mark.parametrize("loss", [dppo_tv, dppo_kl])
def test_a_huge_ratio_is_truncated_and_counted(loss):
    inputs = token(1e-5, 1e-3, 1.0)
    outputs = loss(inputs, make_config(clip_ratio_low=0.15, clip_ratio_high=0.15, clip_ratio_c=20.0))
    (gradient,) = torch.autograd.grad(outputs.losses.sum(), inputs.logprobs)
    assert gradient.item() == pytest.approx(-20.0)
    assert outputs.metrics["actor/pg_clipfrac_lower"].item() == 1.0


@pytest.mark.parametrize("probability", [1.0, 1 - 1e-9])
def test_a_certain_token_has_no_divergence_from_itself(probability):
    assert not masked(dppo_kl(token(probability, probability, 1.0), KL))
    assert not masked(dppo_kl(token(1.0, math.nextafter(1.0, 0.0), -1.0), KL))


@pytest.mark.parametrize(("old", "new", "advantage"), [(1.0, 0.9, -1.0), (0.9, 1.0, 1.0)])
def test_leaving_or_reaching_certainty_counts(old, new, advantage):
    """The logarithm of no probability left for other tokens must not make the divergence a NaN, which masks nothing."""
    assert masked(dppo_kl(token(old, new, advantage), KL))
