"""Group Sequence Policy Optimization: clips the length-normalised importance ratio of the whole sequence.

Qwen Team, 2025 (arXiv:2507.18071). The exponent 1/|y| puts clip bounds in units of the mean token log-ratio: of order
1e-4.
"""

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs, mean_advantages
from trainer.algorithms.policy_losses.gspo_token import clip_sequence_ratio
from trainer.algorithms.registry import POLICY_LOSSES, register


@register(
    POLICY_LOSSES,
    "gspo",
    source="arXiv:2507.18071",
    settings=["clip_ratio_low", "clip_ratio_high"],
    loss_aggs=("seq-mean-token-mean",),
    clip_scale="sequence",
    averages=True,
)
def gspo(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """max(-A s, -A clip(s, 1 - low, 1 + high)) of a rollout, s = exp(mean_t log(new/old probability of token t)).

    A is the mean of its tokens' advantages, which an estimator of the group's kind makes equal.
    """
    return clip_sequence_ratio(inputs, mean_advantages(inputs), config)
