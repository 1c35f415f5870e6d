"""Group Sequence Policy Optimization: clips the length-normalised importance ratio of the whole sequence.

Qwen Team, 2025 (arXiv:2507.18071). The exponent 1/|y| puts clip bounds in units of the mean token log-ratio: of order
1e-4.
"""

import torch

from trainer.algorithms.policy_losses.base import ClipConfig, LossInputs, LossOutputs, mean_per_sample
from trainer.algorithms.registry import POLICY_LOSSES, register

MAX_LOG_RATIO = 10.0


@register(POLICY_LOSSES, "gspo")
def gspo(inputs: LossInputs, config: ClipConfig) -> LossOutputs:
    """max(-A s, -A clip(s, 1 - low, 1 + high)) with s = exp(mean_t log ratio_t), in GSPO-token form.

    The sequence ratio enters as a constant and each token carries the gradient of its own log-prob, which gives the
    sequence form's gradient when the advantage is the same for all tokens, as here.
    """
    log_ratio = inputs.logprobs - inputs.old_logprobs
    sequence = mean_per_sample(log_ratio, inputs)[inputs.sample_index].detach()
    ratio = torch.exp((sequence + inputs.logprobs - inputs.logprobs.detach()).clamp(max=MAX_LOG_RATIO))
    clipped = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    plain, bounded = -inputs.advantages * ratio, -inputs.advantages * clipped
    return LossOutputs(
        torch.maximum(plain, bounded),
        {"actor/pg_clipfrac": (bounded > plain).float(), "actor/ppo_kl": -log_ratio.detach()},
    )
