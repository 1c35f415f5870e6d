"""Divergence Proximal Policy Optimization's update: tokens whose divergence has left the trust region are masked.

Qi et al., 2026 (arXiv:2602.04879). A ratio says little of how far a distribution moved: it is large for rare tokens at
the slightest change, and near 1 for likely ones that moved much. The paper measures from the policy that sampled,
which rollout_correction.mode `bypass` does here.
"""

import torch
from jaxtyping import Bool, Float

from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs, token_log_ratio


def masked_update(inputs: LossInputs, masked: Bool[torch.Tensor, " N"], max_ratio: float) -> LossOutputs:
    """-A sg(min(r, max_ratio)) log pi, and 0 where masked.

    `actor/pg_clipfrac` counts masked tokens, `actor/pg_clipfrac_lower` those that are not, and whose ratio is cut.
    """
    log_ratio = token_log_ratio(inputs).detach()
    ratio = torch.exp(log_ratio)
    return LossOutputs(
        (-inputs.advantages * ratio.clamp(max=max_ratio) * inputs.logprobs).masked_fill(masked, 0.0),
        {
            "actor/pg_clipfrac": masked.float(),
            "actor/pg_clipfrac_lower": ((ratio > max_ratio) & ~masked).float(),
            "actor/ppo_kl": -log_ratio,
        },
    )


def leaves_region(
    inputs: LossInputs, divergence: Float[torch.Tensor, " N"], low: float, high: float
) -> Bool[torch.Tensor, " N"]:
    """Tokens that the advantage would push further from the old policy, and that are too far already.

    `high` bounds the divergence of tokens that gain probability, `low` that of tokens that lose it.
    """
    gains = inputs.logprobs.detach() > inputs.old_logprobs
    loses = inputs.logprobs.detach() < inputs.old_logprobs
    return ((inputs.advantages > 0) & gains & (divergence > high)) | (
        (inputs.advantages < 0) & loses & (divergence > low)
    )
