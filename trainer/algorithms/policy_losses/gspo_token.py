"""Group Sequence Policy Optimization for advantages that differ from token to token.

Qwen Team, 2025 (arXiv:2507.18071, section 4.3). The exponent 1/|y| puts clip bounds in units of the mean token
log-ratio: of order 1e-4.
"""

import torch
from jaxtyping import Float

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs, sequence_ratio
from trainer.algorithms.registry import POLICY_LOSSES, register


@register(
    POLICY_LOSSES,
    "gspo_token",
    source="arXiv:2507.18071",
    settings=["clip_ratio_low", "clip_ratio_high"],
    clip_scale="sequence",
)
def gspo_token(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """max(-A_t s_t, -A_t clip(s_t, 1 - low, 1 + high)), s_t = sg(s) pi_t / sg(pi_t), s as in gspo."""
    return clip_sequence_ratio(inputs, inputs.advantages, config)


def clip_sequence_ratio(
    inputs: LossInputs, advantages: Float[torch.Tensor, " N"], config: AlgorithmConfig
) -> LossOutputs:
    """Loss of tokens that share their rollout's ratio."""
    log_ratio = inputs.logprobs - inputs.old_logprobs
    ratio = sequence_ratio(log_ratio, inputs)
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    return LossOutputs(
        torch.maximum(plain, bounded),
        {"actor/pg_clipfrac": (bounded > plain).float(), "actor/ppo_kl": -log_ratio.detach()},
    )
