"""Random rows for policy losses, cut and put together again, and configs that differ in few fields."""

from dataclasses import replace
from typing import Any

import torch

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs

WIDE = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_c": 3.0, "loss_horizon": 7}
"""Bounds of PPO's size, which random ratios overstep now and then."""


def make_config(**fields: Any) -> AlgorithmConfig:
    """Defaults but for PPO-sized bounds and these fields; unchecked, so that a test names any loss with any other."""
    return AlgorithmConfig().model_copy(update=WIDE | fields)


def make_inputs(
    lengths: tuple[int, ...] = (3, 1, 5),
    spread: float = 0.5,
    advantages: tuple[float, ...] | None = None,
    seed: int = 0,
    by_token: bool = False,
) -> LossInputs:
    """Rollouts of these lengths, their tokens interleaved, in double precision; `spread` is the size of log-ratios.

    `by_token` gives each token an advantage of its own. About a third of the tokens are `selected`.
    """
    generator = torch.Generator().manual_seed(seed)
    owners = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    owners = owners[torch.randperm(len(owners), generator=generator)]
    old = -torch.rand(len(owners), generator=generator, dtype=torch.float64) * 3
    new = old + spread * torch.randn(len(owners), generator=generator, dtype=torch.float64)
    if advantages is None:
        per_rollout = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    else:
        per_rollout = torch.tensor(advantages, dtype=torch.float64)
    per_token = per_rollout[owners]
    if by_token:
        per_token = per_token + torch.randn(len(owners), generator=generator, dtype=torch.float64)
    selected = torch.rand(len(owners), generator=generator) < 0.3
    return LossInputs(new.requires_grad_(), old, per_token, owners, len(lengths), selected)


def one_rollout(
    log_ratios: list[float], advantage: float, dtype: torch.dtype = torch.float64, selected: bool = False
) -> LossInputs:
    """A rollout whose log-ratios are these up to rounding."""
    ratios = torch.tensor(log_ratios, dtype=dtype)
    old = -1.0 - ratios.clamp(min=0)
    new = (old + ratios).requires_grad_()
    count = len(log_ratios)
    return LossInputs(
        new, old, torch.full((count,), advantage, dtype=dtype), torch.zeros(count, dtype=torch.long), 1,
        torch.full((count,), selected),
    )  # fmt: skip


def take(inputs: LossInputs, rollouts: list[int]) -> LossInputs:
    """A row of these rollouts, in this order; log-probs stay in the graph."""
    places = [(inputs.sample_index == rollout).nonzero()[:, 0] for rollout in rollouts]
    owners = [torch.full((len(place),), i) for i, place in enumerate(places)]
    tokens = torch.cat([*places, torch.zeros(0, dtype=torch.long)])
    return replace(
        inputs,
        logprobs=inputs.logprobs[tokens],
        old_logprobs=inputs.old_logprobs[tokens],
        advantages=inputs.advantages[tokens],
        sample_index=torch.cat([*owners, torch.zeros(0, dtype=torch.long)]),
        sample_count=len(rollouts),
        selected=None if inputs.selected is None else inputs.selected[tokens],
    )
