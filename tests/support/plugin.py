"""A user's plugin, as a run config names it in `plugins`: an estimator that gives a random policy something to learn.

A tiny random model never repairs anything, so GRPO would find no signal in its trials.
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "alternate")
def alternate(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """+1 and -1 in turn."""
    return inputs.spread(1.0 - 2.0 * (torch.arange(len(inputs.rewards)) % 2))
