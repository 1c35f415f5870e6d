"""Proximal Policy Optimization: clips each token's importance ratio.

Schulman et al., 2017 (arXiv:1707.06347); dual clip: Ye et al., 2019 (arXiv:1912.09729); separate bounds, "clip-higher":
DAPO, Yu et al., 2025 (arXiv:2503.14476).
"""

import torch

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs, token_log_ratio
from trainer.algorithms.registry import POLICY_LOSSES, register


@register(
    POLICY_LOSSES,
    "ppo",
    source="arXiv:1707.06347, arXiv:1912.09729, arXiv:2503.14476",
    settings=["clip_ratio_low", "clip_ratio_high", "clip_ratio_c"],
    clip_scale="token",
)
def ppo(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """max(-A r, -A clip(r, 1 - low, 1 + high)), and at most -A c where A < 0; r = new/old probability of the token.

    `actor/pg_clipfrac` counts tokens that the two bounds cut off, `actor/pg_clipfrac_lower` those that c cuts off.
    """
    log_ratio = token_log_ratio(inputs)
    ratio = torch.exp(log_ratio)
    plain = -inputs.advantages * ratio
    bounded = -inputs.advantages * ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    clipped = torch.maximum(plain, bounded)
    dual = torch.minimum(clipped, -inputs.advantages * config.clip_ratio_c)
    losses = torch.where(inputs.advantages < 0, dual, clipped)
    return LossOutputs(
        losses,
        {
            "actor/pg_clipfrac": (bounded > plain).float(),
            "actor/pg_clipfrac_lower": ((dual < clipped) & (inputs.advantages < 0)).float(),
            "actor/ppo_kl": -log_ratio.detach(),
        },
    )
