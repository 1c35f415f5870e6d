"""GSPO in token form has the value and the gradient of the sequence form; what differs for advantages by token."""

import pytest
import torch
from support.losses import make_config, make_inputs

from trainer.algorithms.aggregation import GlobalCounts, aggregate
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs
from trainer.algorithms.policy_losses.gspo import gspo
from trainer.algorithms.policy_losses.gspo_token import gspo_token

WIDE = make_config(clip_ratio_low=0.2, clip_ratio_high=0.3)


def sequence_form(inputs: LossInputs, low: float, high: float) -> torch.Tensor:
    """The loss as the paper writes it: a sum over rollouts of max(-A s, -A clip(s)), over their number."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(inputs.sample_count):
        mine = inputs.sample_index == i
        ratio = torch.exp((inputs.logprobs[mine] - inputs.old_logprobs[mine]).mean())
        advantage = inputs.advantages[mine][0]
        total = total + torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - low, 1 + high))
    return total / inputs.sample_count


def ours(inputs: LossInputs, config: AlgorithmConfig) -> torch.Tensor:
    counts = GlobalCounts(inputs.sample_count, len(inputs.logprobs))
    return aggregate(gspo(inputs, config).losses, inputs.sample_index, inputs.sample_count, counts, config)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.0, 0.05, 1.0])
def test_value_and_gradient_are_the_sequence_forms(seed, spread):
    inputs = make_inputs((3, 1, 5, 8), spread, seed=seed)
    mine, direct = ours(inputs, WIDE), sequence_form(inputs, 0.2, 0.3)
    torch.testing.assert_close(mine, direct)
    (gradient,) = torch.autograd.grad(mine, inputs.logprobs)
    (expected,) = torch.autograd.grad(direct, inputs.logprobs)
    torch.testing.assert_close(gradient, expected)
    assert gradient.isfinite().all()


def test_the_token_form_is_the_same_where_tokens_share_an_advantage():
    inputs = make_inputs((3, 1, 5, 8), 0.5)
    torch.testing.assert_close(gspo_token(inputs, WIDE).losses, gspo(inputs, WIDE).losses)


def test_advantages_by_token_reach_the_token_form_only():
    inputs = make_inputs((4,), spread=0.0, by_token=True)
    (by_token,) = torch.autograd.grad(gspo_token(inputs, WIDE).losses.sum(), inputs.logprobs)
    torch.testing.assert_close(by_token, -inputs.advantages)
    (by_rollout,) = torch.autograd.grad(gspo(inputs, WIDE).losses.sum(), inputs.logprobs)
    torch.testing.assert_close(by_rollout, -inputs.advantages.mean().expand(4))


def shifted(shift: float, advantage: float) -> LossInputs:
    old = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    new = (old + shift).requires_grad_()
    return LossInputs(new, old, torch.full((2,), advantage, dtype=torch.float64), torch.zeros(2, dtype=torch.long), 1)


@pytest.mark.parametrize(
    ("shift", "advantage", "clipped"),
    [(0.5, 1.0, True), (0.5, -1.0, False), (-0.5, -1.0, True), (-0.5, 1.0, False), (0.1, 1.0, False)],
)
def test_clips_only_what_would_go_on_in_the_direction_of_the_advantage(shift, advantage, clipped):
    inputs = shifted(shift, advantage)
    outputs = gspo(inputs, WIDE)
    assert outputs.metrics["actor/pg_clipfrac"].tolist() == [float(clipped)] * 2
    (gradient,) = torch.autograd.grad(outputs.losses.sum(), inputs.logprobs)
    assert (gradient == 0).all() == clipped
    bound = 1.3 if shift > 0 else 0.8
    ratio = bound if clipped else torch.tensor(shift, dtype=torch.float64).exp()
    torch.testing.assert_close(outputs.losses.detach(), torch.full((2,), -advantage, dtype=torch.float64) * ratio)


def test_the_ratio_is_the_sequences_not_the_tokens():
    """Tokens far from 1 that cancel are not clipped."""
    old = torch.tensor([-3.0, -3.0], dtype=torch.float64)
    inputs = LossInputs(
        torch.tensor([-2.0, -4.0], dtype=torch.float64, requires_grad=True),
        old, torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.long), 1,
    )  # fmt: skip
    outputs = gspo(inputs, AlgorithmConfig())
    torch.testing.assert_close(outputs.losses.detach(), -torch.ones(2, dtype=torch.float64))
    assert outputs.metrics["actor/pg_clipfrac"].sum() == 0


def test_kl_metric_is_the_mean_log_ratio_with_the_sign_turned():
    inputs = make_inputs()
    expected = inputs.old_logprobs - inputs.logprobs.detach()
    torch.testing.assert_close(gspo(inputs, WIDE).metrics["actor/ppo_kl"], expected)


def test_a_huge_ratio_stays_finite():
    inputs = shifted(900.0, -1.0)
    outputs = gspo(inputs, WIDE)
    (gradient,) = torch.autograd.grad(outputs.losses.sum(), inputs.logprobs)
    assert outputs.losses.isfinite().all() and gradient.isfinite().all()
