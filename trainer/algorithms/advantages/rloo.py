"""REINFORCE leave-one-out: the baseline of a rollout is the mean of the others of its group.

Ahmadian et al., Back to Basics, 2024 (arXiv:2402.14740).
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "rloo", source="arXiv:2402.14740")
def rloo(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A = r - mean of the others in the group = (r - mean of the group) * n / (n - 1).

    Exactly 0 in a group whose rewards are all equal, a group of one among them.
    """
    scores, sizes = inputs.scores, inputs.group_sizes
    advantages = (scores - inputs.mean_by_group(scores)) * sizes / (sizes - 1).clamp(min=1)
    return inputs.spread(torch.where(inputs.informative(scores), advantages, 0.0))
