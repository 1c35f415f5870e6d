"""Group Policy Gradient: groups without a signal do not make the others' gradient smaller.

Chu et al., 2025 (arXiv:2504.02546).
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "gpg", source="arXiv:2504.02546", settings=["gpg_f_norm"])
def gpg(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A = alpha * (r - mean of the group) / gpg_f_norm, alpha = rollouts / rollouts in groups with a signal.

    Exactly 0 in a group whose rewards are all equal, a group of one among them: these are what alpha makes up for.
    """
    scores = inputs.scores
    informative = inputs.informative(scores)
    alpha = len(scores) / max(int(informative.sum()), 1)
    advantages = alpha * (scores - inputs.mean_by_group(scores)) / config.gpg_f_norm
    return inputs.spread(torch.where(informative, advantages, 0.0))
