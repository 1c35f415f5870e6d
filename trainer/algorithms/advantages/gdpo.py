"""Group reward-Decoupled normalization: each of several rewards is normalised on its own, so that none drowns another.

Liu et al., 2026 (arXiv:2601.05242).
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.advantages.grpo import EPSILON
from trainer.algorithms.advantages.whiten import whiten_rollouts
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "gdpo", source="arXiv:2601.05242", settings=["reward_weights"])
def gdpo(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A = sum over named rewards of weight * (r - mean of the group) / (its unbiased std + 1e-6), whitened over tokens.

    Exactly 0 in a group where no reward with a weight differs. The scalar reward is not read.

    Raises:
        ValueError: no named rewards, a weight for a reward that is not there, or penalties, which would be lost.
    """
    named, weights = inputs.named_rewards, config.reward_weights
    if not named:
        raise ValueError(
            "gdpo needs named_rewards and got none; "
            "let the reward function return several rewards by name, or set adv_estimator: grpo"
        )
    unknown = sorted(set(weights) - set(named))
    if unknown:
        raise ValueError(
            f"reward_weights names {', '.join(unknown)}, which the reward function does not return; "
            f"it returns {', '.join(sorted(named))}"
        )
    if inputs.penalties is not None:
        raise ValueError("gdpo reads named rewards only and would lose penalties in the reward; set kl.place: loss")

    total = torch.zeros(len(inputs.rewards), dtype=torch.float64)
    informative = torch.zeros(len(inputs.rewards), dtype=torch.bool)
    for name, rewards in named.items():
        weight = weights.get(name, 1.0)
        differs = inputs.informative(rewards)
        normalised = (rewards - inputs.mean_by_group(rewards)) / (inputs.std_by_group(rewards) + EPSILON)
        total += weight * torch.where(differs, normalised, 0.0)
        if weight:
            informative |= differs
    return inputs.spread(torch.where(informative, whiten_rollouts(total, inputs.lengths), 0.0))
