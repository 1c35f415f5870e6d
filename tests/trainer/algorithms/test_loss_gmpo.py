"""GMPO: token values that add up to the paper's sequence form, under the normaliser of the whole mini-batch."""

import math

import pytest
import torch
from support.losses import make_config, make_inputs, one_rollout

from trainer.algorithms.aggregation import GlobalCounts, aggregate
from trainer.algorithms.policy_losses.gmpo import gmpo

CONFIG = make_config(clip_ratio_low=0.4, clip_ratio_high=0.4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.5])
def test_value_and_gradient_are_the_sequence_forms(seed, spread):
    inputs = make_inputs((3, 1, 5, 8), spread, seed=seed)
    counts = GlobalCounts(rollouts=6, tokens=30)  # two rollouts more are elsewhere
    mine = aggregate(gmpo(inputs, CONFIG).losses, inputs.sample_index, inputs.sample_count, counts, CONFIG)
    total = torch.zeros((), dtype=torch.float64)
    for i in range(inputs.sample_count):
        tokens = inputs.sample_index == i
        advantage, log_ratio = inputs.advantages[tokens][0], (inputs.logprobs - inputs.old_logprobs)[tokens]
        sign = advantage.sign()
        bounded = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-0.4, 0.4))
        total = total - advantage * bounded.mean().exp()
    torch.testing.assert_close(mine, total / 6)
    (gradient,) = torch.autograd.grad(mine, inputs.logprobs, retain_graph=True)
    (expected,) = torch.autograd.grad(total / 6, inputs.logprobs)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(
    ("advantage", "bounded", "held", "metric"),
    [
        (2.0, [0.4, -1.0, 0.1], [True, False, False], "actor/pg_clipfrac"),
        (-2.0, [1.0, -0.4, 0.1], [False, True, False], "actor/pg_clipfrac_lower"),
    ],
)
def test_a_rollout(advantage, bounded, held, metric):
    inputs = one_rollout([1.0, -1.0, 0.1], advantage)
    outputs = gmpo(inputs, CONFIG)
    loss = -advantage * math.exp(sum(bounded) / 3)
    assert outputs.losses.tolist() == pytest.approx([loss] * 3)
    (gradient,) = torch.autograd.grad(outputs.losses.mean(), inputs.logprobs)
    assert gradient.tolist() == pytest.approx([0.0 if x else loss / 3 for x in held])
    clipped = {name: values.bool().tolist() for name, values in outputs.metrics.items() if "clipfrac" in name}
    assert clipped.pop(metric) == held
    assert not any(clipped.popitem()[1])
