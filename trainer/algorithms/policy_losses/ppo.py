"""Proximal Policy Optimization: clips each token's importance ratio.

Schulman et al., 2017 (arXiv:1707.06347); dual clip: Ye et al., 2019 (arXiv:1912.09729); separate bounds: DAPO, Yu et
al., 2025 (arXiv:2503.14476).
"""

import torch

from trainer.algorithms.policy_losses.base import ClipConfig, LossInputs, LossOutputs
from trainer.algorithms.registry import POLICY_LOSSES, register

MAX_LOG_RATIO = 20.0


@register(POLICY_LOSSES, "ppo")
def ppo(inputs: LossInputs, config: ClipConfig) -> LossOutputs:
    """max(-A r, -A clip(r, 1 - low, 1 + high)), bounded by -A c where A < 0."""
    log_ratio = (inputs.logprobs - inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
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
