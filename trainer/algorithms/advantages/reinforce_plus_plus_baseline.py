"""REINFORCE++ with the group's mean as baseline, scaled by the batch instead of by the group.

Hu et al., 2025 (arXiv:2501.03262).
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.advantages.whiten import whiten_rollouts
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "reinforce_plus_plus_baseline", source="arXiv:2501.03262")
def reinforce_plus_plus_baseline(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A = r - mean of the group, whitened over the tokens of the batch.

    A group whose rewards are all equal counts in the whitening as 0, and gets exactly 0 after it, although the mean
    over tokens, that whitening subtracts, is seldom 0 where rollouts differ in length.
    """
    scores = inputs.scores
    informative = inputs.informative(scores)
    centred = torch.where(informative, scores - inputs.mean_by_group(scores), 0.0)
    return inputs.spread(torch.where(informative, whiten_rollouts(centred, inputs.lengths), 0.0))
