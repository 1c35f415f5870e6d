"""A user's plugin, as a run config names it: an estimator and a reward that give a random policy something to learn.

A tiny random model never repairs anything, so GRPO would find no signal in its trials.
"""

import torch

from tasks.reward import RewardInput
from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "alternate")
def alternate(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """+1 and -1 in turn."""
    return inputs.spread(1.0 - 2.0 * (torch.arange(len(inputs.rewards)) % 2))


_without_signal: list[str] = []


def lots(trial: RewardInput) -> float:
    """A reward by lot, no better for any policy; the first task that is asked about always gets 0.

    So a step always has something to learn, and always a group to drop.
    """
    if not _without_signal:
        _without_signal.append(trial.task_id)
    return 0.0 if trial.task_id in _without_signal else int(trial.session_id[-8:], 16) / 16**8
