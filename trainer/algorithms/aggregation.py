"""From token losses to one number, normalised by counts over the global batch.

Each rank and micro-batch adds its share of one global sum: gradients do not depend on packing, micro-batches or ranks.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float

from trainer.algorithms.policy_losses.base import LossInputs, mean_per_sample


@dataclass(frozen=True)
class GlobalCounts:
    """What the whole mini-batch holds, over all ranks and micro-batches, rollouts without gradient included."""

    rollouts: int
    tokens: int


def aggregate(
    losses: Float[torch.Tensor, " N"], inputs: LossInputs, mode: str, counts: GlobalCounts
) -> Float[torch.Tensor, ""]:
    """This row's share of the loss. Shares of all rows and ranks add up to the loss of the mini-batch.

    Modes: `token-mean` sum(l)/tokens; `seq-mean-token-sum` sum_seq(sum(l))/rollouts; `seq-mean-token-mean`
    sum_seq(mean(l))/rollouts.

    Raises:
        ValueError: an unknown mode.
    """
    if mode == "token-mean":
        return losses.sum() / max(counts.tokens, 1)
    if mode == "seq-mean-token-sum":
        return losses.sum() / max(counts.rollouts, 1)
    if mode == "seq-mean-token-mean":
        return mean_per_sample(losses, inputs).sum() / max(counts.rollouts, 1)
    raise ValueError(f"unknown loss aggregation {mode!r}")
