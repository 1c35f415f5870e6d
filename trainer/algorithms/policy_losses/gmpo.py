"""Geometric-Mean Policy Optimization: the geometric mean of a rollout's token ratios, each clipped before.

Zhao et al., 2025 (arXiv:2507.20673). The bounds are of log-ratios; the paper takes (e^-0.4, e^0.4).
"""

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs, mean_advantages, sequence_ratio
from trainer.algorithms.registry import POLICY_LOSSES, register


@register(
    POLICY_LOSSES,
    "gmpo",
    source="arXiv:2507.20673",
    settings=["clip_ratio_low", "clip_ratio_high"],
    loss_aggs=("seq-mean-token-mean",),
    clip_scale="token",
    averages=True,
)
def gmpo(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """-A exp(mean_t b_t) of a rollout, b_t = min(log r_t, high) where A > 0, max(log r_t, -low) where A < 0.

    A is the mean of its tokens' advantages. `actor/pg_clipfrac` counts tokens held at high, `actor/pg_clipfrac_lower`
    those held at -low: they have no gradient, the rest of their rollout has.
    """
    log_ratio = inputs.logprobs - inputs.old_logprobs
    advantages = mean_advantages(inputs)
    over = (advantages > 0) & (log_ratio > config.clip_ratio_high)
    under = (advantages < 0) & (log_ratio < -config.clip_ratio_low)
    bounded = log_ratio.masked_fill(over, config.clip_ratio_high).masked_fill(under, -config.clip_ratio_low)
    return LossOutputs(
        -advantages * sequence_ratio(bounded, inputs),
        {
            "actor/pg_clipfrac": over.float(),
            "actor/pg_clipfrac_lower": under.float(),
            "actor/ppo_kl": -log_ratio.detach(),
        },
    )
