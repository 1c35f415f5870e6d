"""What a policy loss sees of a packed row, and what it gives back."""

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int


@dataclass(frozen=True)
class LossInputs:
    """N trained tokens of S whole rollouts, flat.

    `sample_index` says which rollout a token belongs to; a rollout is never split over rows: its tokens are all here.
    """

    logprobs: Float[torch.Tensor, " N"]
    old_logprobs: Float[torch.Tensor, " N"]
    advantages: Float[torch.Tensor, " N"]
    sample_index: Int[torch.Tensor, " N"]
    sample_count: int


class ClipConfig(Protocol):
    """The part of `AlgorithmConfig` that losses read."""

    @property
    def clip_ratio_low(self) -> float: ...

    @property
    def clip_ratio_high(self) -> float: ...

    @property
    def clip_ratio_c(self) -> float: ...


@dataclass(frozen=True)
class LossOutputs:
    """Loss of each token, before aggregation, and per-token metrics that the learner averages over the global batch."""

    losses: Float[torch.Tensor, " N"]
    metrics: dict[str, Float[torch.Tensor, " N"]]


def mean_per_sample(values: Float[torch.Tensor, " N"], inputs: LossInputs) -> Float[torch.Tensor, " S"]:
    """Mean over the tokens of each rollout; 0 for a rollout without trained tokens."""
    zeros = torch.zeros(inputs.sample_count, dtype=values.dtype, device=values.device)
    sums = zeros.index_add(0, inputs.sample_index, values)
    counts = zeros.index_add(0, inputs.sample_index, torch.ones_like(values))
    return sums / counts.clamp(min=1)
