"""REINFORCE++: discounted returns, normalised over the batch, without critic or groups.

Hu et al., 2025 (arXiv:2501.03262).
"""

from trainer.algorithms.advantages.base import AdvantageInputs, Advantages
from trainer.algorithms.advantages.discount import rewards_to_go
from trainer.algorithms.advantages.whiten import whiten
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, register


@register(ADVANTAGE_ESTIMATORS, "reinforce_plus_plus", source="arXiv:2501.03262", settings=["gamma"])
def reinforce_plus_plus(inputs: AdvantageInputs, config: AlgorithmConfig) -> Advantages:
    """A[t] = G[t] = r[t] + gamma*G[t+1], whitened over the tokens of the batch.

    Groups do not matter: a rollout is measured against the whole batch.
    """
    return Advantages(whiten(rewards_to_go(inputs, inputs.rewards, config.gamma)))
