"""KL-Cov: the tokens of highest covariance between log-probability and advantage are held near the old policy.

Cui et al., 2025 (arXiv:2505.22617). There is no clip.
"""

import torch
from jaxtyping import Bool, Float

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs, token_log_ratio
from trainer.algorithms.policy_losses.covariance import require_selection, selection_size, token_covariance
from trainer.algorithms.registry import POLICY_LOSSES, register


def select_kl_cov(
    advantages: Float[torch.Tensor, " N"], logprobs: Float[torch.Tensor, " N"], config: AlgorithmConfig, seed: int
) -> Bool[torch.Tensor, " N"]:
    """The share `kl_cov_ratio` of all N tokens with the highest covariance; of equal ones the first.

    Nothing is drawn: `seed` is not used.
    """
    selected = torch.zeros(len(advantages), dtype=torch.bool, device=advantages.device)
    order = torch.sort(token_covariance(advantages, logprobs), descending=True, stable=True).indices
    selected[order[: selection_size(config.kl_cov_ratio, len(advantages))]] = True
    return selected


@register(
    POLICY_LOSSES,
    "kl_cov",
    source="arXiv:2505.22617",
    settings=["kl_cov_ratio", "kl_cov_coef"],
    needs=["old_logprobs"],
    clip_scale=None,
    select=select_kl_cov,
)
def kl_cov(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """-A r, plus coef |log r| for the tokens of highest covariance; `actor/cov_selected` counts them."""
    selected = require_selection(inputs, "kl_cov")
    log_ratio = token_log_ratio(inputs)
    # without the bound of ±20, which would let go of a token that has gone far
    penalty = config.kl_cov_coef * (inputs.logprobs - inputs.old_logprobs).abs()
    return LossOutputs(
        -inputs.advantages * torch.exp(log_ratio) + torch.where(selected, penalty, 0.0),
        {"actor/cov_selected": selected.float(), "actor/ppo_kl": -log_ratio.detach()},
    )
