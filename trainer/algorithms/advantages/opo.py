"""On-Policy RL with Optimal reward baseline: long rollouts, of larger gradients, weigh more in the baseline.

Hao et al., 2025 (arXiv:2505.23585).
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "opo", source="arXiv:2505.23585")
def opo(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A = r - sum(length * r) / sum(length), sums over the group.

    Exactly 0 in a group whose rewards are all equal, a group of one among them.
    """
    scores, lengths = inputs.scores, inputs.lengths.double()
    baselines = inputs.sum_by_group(lengths * scores) / inputs.sum_by_group(lengths)
    return inputs.spread(torch.where(inputs.informative(scores), scores - baselines, 0.0))
