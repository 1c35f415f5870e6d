"""Maximum Likelihood RL: dividing by the success rate climbs its logarithm, so that hard tasks weigh more.

Tajwar et al., 2026 (arXiv:2602.02710).
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register

EPSILON = 1e-6


@register(ADVANTAGE_ESTIMATORS, "maxrl", source="arXiv:2602.02710")
def maxrl(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A = (r - mean of the group) / (mean reward of the group + 1e-6).

    Exactly 0 in a group whose rewards are all equal, a group of one among them, and in one without any success.
    Penalties enter the numerator only: the mean reward stands for a probability of success.

    Raises:
        ValueError: a negative reward, of which no mean is a probability.
    """
    if bool((inputs.rewards < 0).any()):
        raise ValueError(
            f"maxrl divides by a mean reward and needs rewards of at least 0, got {float(inputs.rewards.min())}; "
            "shift the rewards, or set adv_estimator: grpo"
        )
    scores, success = inputs.scores, inputs.mean_by_group(inputs.rewards)
    advantages = (scores - inputs.mean_by_group(scores)) / (success + EPSILON)
    return inputs.spread(torch.where(inputs.informative(scores) & (success > 0), advantages, 0.0))
