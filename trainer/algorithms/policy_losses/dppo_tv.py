"""DPPO with the total variation of "this token" against "any other token".

Qi et al., 2026 (arXiv:2602.04879). Their example bounds it by 0.15 and does not truncate, c = 10000: a small c biases.
"""

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs
from trainer.algorithms.policy_losses.divergence import leaves_region, masked_update
from trainer.algorithms.registry import POLICY_LOSSES, register


@register(
    POLICY_LOSSES,
    "dppo_tv",
    source="arXiv:2602.04879",
    settings=["clip_ratio_low", "clip_ratio_high", "clip_ratio_c"],
    clip_scale="token",
)
def dppo_tv(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """-A sg(min(r, c)) log pi; 0 if A > 0 and pi - old > high, or A < 0 and old - pi > low (probabilities)."""
    variation = (inputs.logprobs.detach().exp() - inputs.old_logprobs.exp()).abs()
    masked = leaves_region(inputs, variation, config.clip_ratio_low, config.clip_ratio_high)
    return masked_update(inputs, masked, config.clip_ratio_c)
