"""Group Relative Policy Optimization: a rollout's reward against the other attempts at the same task.

Shao et al., DeepSeekMath, 2024 (arXiv:2402.03300). Without the division by the standard deviation it is Dr.GRPO,
Liu et al., 2025 (arXiv:2503.20783).
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register

EPSILON = 1e-6


@register(ADVANTAGE_ESTIMATORS, "grpo", source="arXiv:2402.03300, arXiv:2503.20783", settings=["norm_adv_by_std"])
def grpo(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A = (r - mean of the group) / (its unbiased std + 1e-6); without the division it is Dr.GRPO.

    A group whose rewards are all equal, a group of one among them, gets exactly 0: it says nothing about the policy.
    """
    scores = inputs.scores
    advantages = scores - inputs.mean_by_group(scores)
    if config.norm_adv_by_std:
        advantages = advantages / (inputs.std_by_group(scores) + EPSILON)
    return inputs.spread(torch.where(inputs.informative(scores), advantages, 0.0))
