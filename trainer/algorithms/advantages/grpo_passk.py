"""Pass@k policy gradient: only the best of a group matters, by what the group would lose without it.

Tang et al., Optimizing Language Models for Inference Time Objectives, 2025 (arXiv:2503.19595).
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.advantages.grpo import EPSILON
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "grpo_passk", source="arXiv:2503.19595", settings=["norm_adv_by_std"])
def grpo_passk(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A = (best r - second best r) / (unbiased std of the group + 1e-6) for the best of the group, 0 for the others.

    Exactly 0 where the best is not the only one, and in a group of one.
    """
    scores = inputs.scores
    best = inputs.max_by_group(scores)
    is_best = scores == best
    second = inputs.max_by_group(torch.where(is_best, -torch.inf, scores))
    alone = inputs.sum_by_group(is_best.long()) == 1
    advantages = best - second
    if config.norm_adv_by_std:
        advantages = advantages / (inputs.std_by_group(scores) + EPSILON)
    return inputs.spread(torch.where(is_best & alone & (inputs.group_sizes > 1), advantages, 0.0))
