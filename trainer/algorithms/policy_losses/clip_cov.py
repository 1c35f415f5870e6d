"""Clip-Cov: a few tokens of high covariance between log-probability and advantage lose their gradient.

Cui et al., 2025 (arXiv:2505.22617).
"""

import torch
from jaxtyping import Bool, Float

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs, token_log_ratio
from trainer.algorithms.policy_losses.covariance import require_selection, selection_size, token_covariance
from trainer.algorithms.registry import POLICY_LOSSES, register


def select_clip_cov(
    advantages: Float[torch.Tensor, " N"], logprobs: Float[torch.Tensor, " N"], config: AlgorithmConfig, seed: int
) -> Bool[torch.Tensor, " N"]:
    """Tokens drawn at random from those whose covariance lies in [clip_cov_low, clip_cov_high].

    At most the share `clip_cov_ratio` of all N. The draw depends on the order of tokens and on `seed` alone.
    """
    selected = torch.zeros(len(advantages), dtype=torch.bool)
    covariance = token_covariance(advantages, logprobs).cpu()
    candidates = ((covariance >= config.clip_cov_low) & (covariance <= config.clip_cov_high)).nonzero()[:, 0]
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
    selected[candidates[order[: selection_size(config.clip_cov_ratio, len(advantages))]]] = True
    return selected.to(advantages.device)


@register(
    POLICY_LOSSES,
    "clip_cov",
    source="arXiv:2505.22617",
    settings=["clip_ratio_low", "clip_ratio_high", "clip_cov_ratio", "clip_cov_low", "clip_cov_high"],
    needs=["old_logprobs"],
    clip_scale="token",
    select=select_clip_cov,
)
def clip_cov(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """max(-A r, -A clip(r, 1 - low, 1 + high)); 0 for tokens drawn from those with covariance in [cov_low, cov_high].

    `actor/pg_clipfrac` counts tokens without gradient for either reason, `actor/cov_selected` the drawn ones.
    """
    selected = require_selection(inputs, "clip_cov")
    log_ratio = token_log_ratio(inputs)
    ratio = torch.exp(log_ratio)
    plain = -inputs.advantages * ratio
    bounded = -inputs.advantages * ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    return LossOutputs(
        torch.maximum(plain, bounded).masked_fill(selected, 0.0),
        {
            "actor/pg_clipfrac": ((bounded > plain) | selected).float(),
            "actor/cov_selected": selected.float(),
            "actor/ppo_kl": -log_ratio.detach(),
        },
    )
