"""ReMax: the baseline is the reward of a greedy answer to the same prompt.

Li et al., 2023 (arXiv:2310.10505).
"""

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.advantages.discount import rewards_to_go
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "remax", source="arXiv:2310.10505", needs=["greedy_baseline"])
def remax(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A[t] = r - penalties from t on - reward of the group's greedy trial.

    The baseline is a trial of its own, not a mean: a group of one has a signal here.
    """
    relative = inputs.rewards - inputs.need("baselines")
    if inputs.penalties is None:
        return inputs.spread(relative)
    return Advantages(rewards_to_go(inputs, relative, 1.0))
