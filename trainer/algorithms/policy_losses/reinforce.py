"""REINFORCE: the policy gradient itself, without a ratio.

Williams, 1992 (Machine Learning 8). It is right for one optimizer step on fresh rollouts; what has gone off policy is
corrected by the weights of rollout_correction alone, which mode `bypass` has none of.
"""

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import LossInputs, LossOutputs, token_log_ratio
from trainer.algorithms.registry import POLICY_LOSSES, register


@register(POLICY_LOSSES, "reinforce", source="doi:10.1007/BF00992696", clip_scale=None, ratio=False)
def reinforce(inputs: LossInputs, config: AlgorithmConfig) -> LossOutputs:
    """-A log pi."""
    return LossOutputs(
        -inputs.advantages * inputs.logprobs,
        {"actor/ppo_kl": -token_log_ratio(inputs).detach()},
    )
