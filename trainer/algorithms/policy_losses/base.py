"""What a policy loss sees of a packed row, what it gives back, and how one is registered.

A loss is `function(inputs, config) -> LossOutputs`. Options of its registration, beside those of `register`:
`loss_aggs`, the aggregations under which it is the loss of its paper, any if absent; `clip_scale`, what its bounds
measure, "token" (of order 0.2) or "sequence" (of order 1e-4), None if it has none; `ratio`, False if the loss has no
ratio to the old policy; `averages`, True if it takes the mean of a rollout's advantages; `select`, a function
`(advantages [N], old_logprobs [N], config, seed) -> Bool[N]` that is called once with all tokens of a mini-batch, and
whose choice the loss finds in `selected`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int

MAX_LOG_RATIO = 20.0
MAX_SEQUENCE_LOG_RATIO = 10.0


@dataclass(frozen=True)
class LossInputs:
    """N trained tokens of S whole rollouts, flat.

    `sample_index` says which rollout a token belongs to; a rollout is never split over rows: its tokens are all here.
    `old_logprobs` are of the policy before the step's first optimizer step (of the one that sampled, in bypass mode).
    `selected` is what the loss's `select` function chose over the whole mini-batch, None for a loss without one.
    """

    logprobs: Float[torch.Tensor, " N"]
    old_logprobs: Float[torch.Tensor, " N"]
    advantages: Float[torch.Tensor, " N"]
    sample_index: Int[torch.Tensor, " N"]
    sample_count: int
    selected: Bool[torch.Tensor, " N"] | None = None


@dataclass(frozen=True)
class LossOutputs:
    """Loss of each token, before aggregation, and per-token metrics that the learner averages over the global batch.

    Metrics carry no gradient. `actor/ppo_kl` is -log_ratio, whose mean estimates KL(old || new).
    """

    losses: Float[torch.Tensor, " N"]
    metrics: dict[str, Float[torch.Tensor, " N"]]


def token_log_ratio(inputs: LossInputs) -> Float[torch.Tensor, " N"]:
    """Log of the new over the old probability of each token, in ±20: its exponential and gradient stay finite."""
    return (inputs.logprobs - inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def mean_per_sample(
    values: Float[torch.Tensor, " N"], sample_index: Int[torch.Tensor, " N"], sample_count: int
) -> Float[torch.Tensor, " S"]:
    """Mean over the tokens of each rollout; 0 for a rollout without trained tokens.

    Summed in float64: sequence ratios live in a band of 1e-4, which float32 sums of long rollouts would blur, and the
    order of a GPU's atomic additions must not show in the result.
    """
    zeros = torch.zeros(sample_count, dtype=torch.float64, device=values.device)
    sums = zeros.index_add(0, sample_index, values.double())
    counts = zeros.index_add(0, sample_index, torch.ones_like(values, dtype=torch.float64))
    return (sums / counts.clamp(min=1)).to(values.dtype)


def mean_advantages(inputs: LossInputs) -> Float[torch.Tensor, " N"]:
    """Mean advantage of its rollout, for each token; the advantage itself where all tokens share one."""
    return mean_per_sample(inputs.advantages, inputs.sample_index, inputs.sample_count)[inputs.sample_index]


def sequence_ratio(log_ratio: Float[torch.Tensor, " N"], inputs: LossInputs) -> Float[torch.Tensor, " N"]:
    """s = exp(mean over the rollout of log_ratio), for each token, which carries s times its own gradient.

    The mean over tokens has the value and the gradient of s itself: s * mean_t(grad log_ratio_t). Unlike s, a token's
    share can be given a weight of its own. At most e^10.
    """
    sequence = mean_per_sample(log_ratio.detach(), inputs.sample_index, inputs.sample_count)[inputs.sample_index]
    return torch.exp((sequence + log_ratio - log_ratio.detach()).clamp(max=MAX_SEQUENCE_LOG_RATIO))
