"""PPO: token ratios, two bounds, and the dual clip where the advantage is negative."""

import math

import pytest
import torch
from support.losses import make_config, make_inputs

from trainer.algorithms.policy_losses.base import LossInputs
from trainer.algorithms.policy_losses.ppo import ppo

CONFIG = make_config(policy_loss="ppo", clip_ratio_low=0.2, clip_ratio_high=0.3, clip_ratio_c=3.0)


def token(ratio: float, advantage: float) -> LossInputs:
    old = torch.tensor([-20.0], dtype=torch.float64)
    new = (old + math.log(ratio)).requires_grad_()
    return LossInputs(new, old, torch.tensor([advantage], dtype=torch.float64), torch.zeros(1, dtype=torch.long), 1)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "learns"),
    [
        (1.0, 2.0, -2.0, True),
        (1.25, 2.0, -2.5, True),
        (1.5, 2.0, -2.6, False),
        (0.5, 2.0, -1.0, True),
        (1.0, -2.0, 2.0, True),
        (0.85, -2.0, 1.7, True),
        (0.5, -2.0, 1.6, False),
        (1.5, -2.0, 3.0, True),
        (5.0, -2.0, 6.0, False),
    ],
)
def test_loss_of_one_token(ratio, advantage, loss, learns):
    inputs = token(ratio, advantage)
    outputs = ppo(inputs, CONFIG)
    assert outputs.losses.item() == pytest.approx(loss)
    (gradient,) = torch.autograd.grad(outputs.losses.sum(), inputs.logprobs)
    assert (gradient.item() != 0) == learns
    if learns:
        assert gradient.item() == pytest.approx(-advantage * ratio)


@pytest.mark.parametrize(
    ("ratio", "advantage", "upper", "dual"), [(1.5, 1.0, 1, 0), (0.5, -1.0, 1, 0), (5.0, -1.0, 0, 1), (1.1, 1.0, 0, 0)]
)
def test_clip_fractions(ratio, advantage, upper, dual):
    metrics = ppo(token(ratio, advantage), CONFIG).metrics
    assert metrics["actor/pg_clipfrac"].item() == upper
    assert metrics["actor/pg_clipfrac_lower"].item() == dual


def test_each_token_is_alone():
    inputs = make_inputs((3, 1, 5), spread=1.0)
    together = ppo(inputs, CONFIG).losses
    for i in range(len(together)):
        alone = LossInputs(
            inputs.logprobs[i : i + 1], inputs.old_logprobs[i : i + 1], inputs.advantages[i : i + 1],
            torch.zeros(1, dtype=torch.long), 1,
        )  # fmt: skip
        torch.testing.assert_close(ppo(alone, CONFIG).losses[0], together[i])
