"""Soft Adaptive Policy Optimization: a smooth gate in place of the clip; tokens off policy fade instead of falling out.

Qwen Team, 2025 (arXiv:2511.20347). The paper averages over the tokens of a rollout, then over rollouts.
"""

import torch

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs, token_log_ratio
from trainer.algorithms.registry import POLICY_LOSSES, register


@register(
    POLICY_LOSSES,
    "sapo",
    source="arXiv:2511.20347",
    settings=["sapo_tau_pos", "sapo_tau_neg"],
    clip_scale=None,
)
def sapo(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """-A (4 / tau) sigmoid(tau (r - 1)), with tau_pos where A > 0 and tau_neg elsewhere; the slope at r = 1 is -A."""
    log_ratio = token_log_ratio(inputs)
    tau = torch.full_like(log_ratio, config.sapo_tau_neg).masked_fill(inputs.advantages > 0, config.sapo_tau_pos)
    gate = 4 / tau * torch.sigmoid(tau * (torch.exp(log_ratio) - 1))
    return LossOutputs(-inputs.advantages * gate, {"actor/ppo_kl": -log_ratio.detach()})
