"""A user's plugin, as a run config names it in `plugins`: an estimator that gives a random policy something to learn.

A tiny random model never repairs anything, so GRPO would find no signal in its trials.
"""

from typing import Any

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "alternate")
def alternate(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """+1 and -1 in turn."""
    return inputs.spread(1.0 - 2.0 * (torch.arange(len(inputs.rewards)) % 2))


def coin(trial: Any) -> float:
    """A reward by chance, which is no better for any policy."""
    return float(int(trial.session_id[-1], 16) % 2)
