"""Group Policy Gradient: REINFORCE on GPG's advantages, which weigh groups up when others carry no signal.

Chu et al., 2025 (arXiv:2504.02546). What sets it apart from `reinforce` is the advantage estimator of the same name.
"""

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs
from trainer.algorithms.policy_losses.reinforce import reinforce
from trainer.algorithms.registry import POLICY_LOSSES, register


@register(POLICY_LOSSES, "gpg", source="arXiv:2504.02546", clip_scale=None, ratio=False)
def gpg(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """-A log pi, as reinforce; meant for adv_estimator gpg."""
    return reinforce(inputs, config)
