"""DPPO with the KL divergence of "this token" against "any other token".

Qi et al., 2026 (arXiv:2602.04879). Their example bounds it by 0.05 and does not truncate, c = 10000: a small c biases.
"""

import torch
from jaxtyping import Float

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs
from trainer.algorithms.policy_losses.divergence import leaves_region, masked_update
from trainer.algorithms.registry import POLICY_LOSSES, register

MIN_PROBABILITY = 1e-8


@register(
    POLICY_LOSSES,
    "dppo_kl",
    source="arXiv:2602.04879",
    settings=["clip_ratio_low", "clip_ratio_high", "clip_ratio_c"],
    clip_scale="token",
)
def dppo_kl(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """-A sg(min(r, c)) log pi; 0 if A > 0, r > 1, D > high, or A < 0, r < 1, D > low; D is the binary KL(old || pi)."""
    divergence = _binary_kl(inputs.old_logprobs, inputs.logprobs.detach())
    masked = leaves_region(inputs, divergence, config.clip_ratio_low, config.clip_ratio_high)
    return masked_update(inputs, masked, config.clip_ratio_c)


def _binary_kl(old: Float[torch.Tensor, " N"], new: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, " N"]:
    """KL(old || new) of the token against all others, from log-probs."""
    old_rest, new_rest = -torch.expm1(old), -torch.expm1(new)
    log_rest = torch.log(old_rest.clamp(min=MIN_PROBABILITY)) - torch.log(new_rest.clamp(min=MIN_PROBABILITY))
    return old.exp() * (old - new) + old_rest * log_rest
