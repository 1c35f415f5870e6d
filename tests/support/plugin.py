"""A user's plugin, as a run config names it in `plugins`: an estimator that gives a random policy something to learn.

A tiny random model never repairs anything, so GRPO would find no signal in its trials.
"""

import numpy as np

from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "alternate")
def alternate(rewards: np.ndarray, group_ids: list[str], norm_by_std: bool = True) -> np.ndarray:
    """+1 and -1 in turn."""
    return np.where(np.arange(len(rewards)) % 2 == 0, 1.0, -1.0)
