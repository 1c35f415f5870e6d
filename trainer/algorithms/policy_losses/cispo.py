"""CISPO: clips the importance weight instead of the update, so that no token loses its gradient.

MiniMax-M1, 2025 (arXiv:2506.13585), which bounds the weight from above only: clip_ratio_low near 1 does so.
"""

import torch

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs, token_log_ratio
from trainer.algorithms.registry import POLICY_LOSSES, register


@register(
    POLICY_LOSSES,
    "cispo",
    source="arXiv:2506.13585",
    settings=["clip_ratio_low", "clip_ratio_high"],
    clip_scale="token",
)
def cispo(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """-A sg(clip(r, 1 - low, 1 + high)) log pi. `actor/pg_clipfrac` counts clipped weights, which still learn."""
    log_ratio = token_log_ratio(inputs).detach()
    ratio = torch.exp(log_ratio)
    weight = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    return LossOutputs(
        -inputs.advantages * weight * inputs.logprobs,
        {"actor/pg_clipfrac": (weight != ratio).float(), "actor/ppo_kl": -log_ratio},
    )
