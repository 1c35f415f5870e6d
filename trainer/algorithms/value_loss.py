"""The critic's loss.

Schulman et al., 2017 (arXiv:1707.06347); the clip is that of their implementation, as in Engstrom et al., 2020
(arXiv:2005.12729).
"""

import torch
from jaxtyping import Float

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossOutputs


def value_loss(
    values: Float[torch.Tensor, " N"],
    old_values: Float[torch.Tensor, " N"],
    returns: Float[torch.Tensor, " N"],
    config: AlgorithmConfig,
) -> LossOutputs:
    """max((v - R)^2, (clip(v, old - eps, old + eps) - R)^2) / 2 of each token; eps is `value_clip`.

    `critic/vf_clipfrac` counts tokens that moved more than eps towards R, which have no gradient.
    """
    clipped = torch.maximum(torch.minimum(values, old_values + config.value_clip), old_values - config.value_clip)
    plain, bounded = (values - returns).square(), (clipped - returns).square()
    return LossOutputs(
        0.5 * torch.maximum(plain, bounded),
        {"critic/vf_clipfrac": (bounded > plain).float(), "critic/vpred_mean": values.detach()},
    )
