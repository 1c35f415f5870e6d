"""What a run of the crash matrix imports: advantages that follow from the group alone.

A tiny random model repairs nothing, and the trials of a group are alike: any estimator that compares them finds no
signal. Here one group is encouraged and the next discouraged.
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "alternate_groups")
def alternate_groups(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """+1 and -1 in turn, by group."""
    return inputs.spread(1.0 - 2.0 * (inputs.group_index % 2).to(torch.float32))
