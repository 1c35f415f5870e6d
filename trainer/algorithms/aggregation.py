"""From token losses to one number, normalised by counts over the global batch.

Each rank and micro-batch adds its share of one global sum: gradients do not depend on packing, micro-batches or ranks.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.policy_losses.base import mean_per_sample
from trainer.algorithms.registry import LOSS_AGGREGATIONS, register


@dataclass(frozen=True)
class GlobalCounts:
    """What the whole mini-batch holds, over all ranks and micro-batches, rollouts without gradient included."""

    rollouts: int
    tokens: int


def aggregate(
    losses: Float[torch.Tensor, " N"],
    sample_index: Int[torch.Tensor, " N"],
    sample_count: int,
    counts: GlobalCounts,
    config: AlgorithmConfig,
) -> Float[torch.Tensor, ""]:
    """This row's share of the loss, as `config.loss_agg` says. Shares of all rows and ranks add up to the loss.

    Raises:
        ValueError: an unknown aggregation, or one that lacks a setting.
    """
    entry = LOSS_AGGREGATIONS.get(config.loss_agg)
    if entry is None:
        raise ValueError(f"loss_agg is {config.loss_agg!r}; known are {', '.join(sorted(LOSS_AGGREGATIONS))}")
    share: Float[torch.Tensor, ""] = entry.function(losses, sample_index, sample_count, counts, config)
    return share


@register(LOSS_AGGREGATIONS, "token-mean", source="arXiv:2503.14476")
def token_mean(
    losses: Float[torch.Tensor, " N"],
    sample_index: Int[torch.Tensor, " N"],
    sample_count: int,
    counts: GlobalCounts,
    config: AlgorithmConfig,
) -> Float[torch.Tensor, ""]:
    """sum of token losses / tokens: each token counts the same, long rollouts more (DAPO)."""
    return losses.sum() / max(counts.tokens, 1)


@register(LOSS_AGGREGATIONS, "token-sum")
def token_sum(
    losses: Float[torch.Tensor, " N"],
    sample_index: Int[torch.Tensor, " N"],
    sample_count: int,
    counts: GlobalCounts,
    config: AlgorithmConfig,
) -> Float[torch.Tensor, ""]:
    """sum of token losses, not normalised: the gradient grows with the batch."""
    return losses.sum()


@register(LOSS_AGGREGATIONS, "seq-mean-token-sum", source="arXiv:2503.20783")
def seq_mean_token_sum(
    losses: Float[torch.Tensor, " N"],
    sample_index: Int[torch.Tensor, " N"],
    sample_count: int,
    counts: GlobalCounts,
    config: AlgorithmConfig,
) -> Float[torch.Tensor, ""]:
    """sum of token losses / rollouts: the policy gradient of whole sequences."""
    return losses.sum() / max(counts.rollouts, 1)


@register(LOSS_AGGREGATIONS, "seq-mean-token-sum-norm", source="arXiv:2503.20783", settings=["loss_horizon"])
def seq_mean_token_sum_norm(
    losses: Float[torch.Tensor, " N"],
    sample_index: Int[torch.Tensor, " N"],
    sample_count: int,
    counts: GlobalCounts,
    config: AlgorithmConfig,
) -> Float[torch.Tensor, ""]:
    """sum of token losses / (rollouts * loss_horizon): Dr.GRPO's, free of a bias by length.

    Raises:
        ValueError: `loss_horizon` is not set. A divisor taken from the batch would change from step to step.
    """
    if config.loss_horizon is None:
        raise ValueError(
            "loss_agg is 'seq-mean-token-sum-norm' and loss_horizon is not set; set loss_horizon to a constant number "
            "of tokens, the longest answer that the window allows, say"
        )
    return losses.sum() / (max(counts.rollouts, 1) * config.loss_horizon)


@register(LOSS_AGGREGATIONS, "seq-mean-token-mean", source="arXiv:2402.03300")
def seq_mean_token_mean(
    losses: Float[torch.Tensor, " N"],
    sample_index: Int[torch.Tensor, " N"],
    sample_count: int,
    counts: GlobalCounts,
    config: AlgorithmConfig,
) -> Float[torch.Tensor, ""]:
    """sum over rollouts of the mean token loss / rollouts: each rollout counts the same (GRPO)."""
    return mean_per_sample(losses, sample_index, sample_count).sum() / max(counts.rollouts, 1)
