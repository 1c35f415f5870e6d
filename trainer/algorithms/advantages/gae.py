"""Generalized Advantage Estimation: a critic's temporal differences, discounted.

Schulman et al., 2015 (arXiv:1506.02438), whitened over the batch as PPO for language models does.
"""

import torch

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.advantages.discount import discounted_sums, token_rewards
from trainer.algorithms.advantages.whiten import whiten
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "gae", source="arXiv:1506.02438", settings=["gamma", "lam"], needs=["values"])
def gae(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A[t] = d[t] + gamma*lam*A[t+1], d[t] = r[t] + gamma*V[t+1] - V[t]; whitened over the tokens of the batch.

    The value behind the last token is 0. `returns` are A + V before whitening. Groups do not matter.
    """
    values = inputs.need("values")
    advantages, returns = (torch.empty(inputs.tokens, dtype=torch.float32) for _ in range(2))
    for rollouts, tokens in inputs.parts():
        lengths = inputs.lengths[rollouts]
        now = values[tokens].double()
        following = now.roll(-1)
        following[lengths.cumsum(0) - 1] = 0.0
        differences = token_rewards(inputs, inputs.rewards[rollouts], lengths, tokens) + config.gamma * following - now
        sums = discounted_sums(differences, lengths, config.gamma * config.lam)
        advantages[tokens] = sums
        returns[tokens] = sums + now
    return Advantages(whiten(advantages), returns)
