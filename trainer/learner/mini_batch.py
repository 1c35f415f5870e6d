"""One optimizer step's worth of rollouts, on one rank."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float

from trainer.algorithms.aggregation import GlobalCounts
from trainer.learner.collective import sum_over_ranks, world_size
from trainer.learner.config import LearnerConfig
from trainer.learner.errors import LearnerError
from trainer.learner.micro_batches import share_out
from trainer.learner.packing import PackedRow
from trainer.learner.samples import TrainSample


@dataclass
class MiniBatch:
    """What a rank computes of a mini-batch.

    `samples` are all of the mini-batch; `counts` normalise its loss. `rows` are this rank's micro-batches of those
    `with_gradient`, `loads` the tokens that each rank computes, or each group of `sp_size` ranks that share rows.
    `old_logprobs` of a row is None where the ratio is 1.
    """

    samples: Sequence[TrainSample]
    with_gradient: Sequence[TrainSample]
    counts: GlobalCounts
    rows: list[PackedRow]
    loads: list[int]
    sp_size: int = 1
    old_logprobs: list[Float[torch.Tensor, " N"] | None] = field(init=False)
    selected: list[Bool[torch.Tensor, " N"] | None] = field(init=False)

    def __post_init__(self) -> None:
        self.old_logprobs = [None] * len(self.rows)
        self.selected = [None] * len(self.rows)

    @classmethod
    def of(
        cls, samples: Sequence[TrainSample], with_gradient: Sequence[TrainSample], rank: int, config: LearnerConfig
    ) -> "MiniBatch":
        """This rank's part of `samples`, of which only some have a gradient."""
        shares = share_out(with_gradient, config.sequence_groups, config.row_tokens, config.share_prompts)
        rows = shares.rows[rank // config.sp_size]
        return cls(samples, with_gradient, count(samples), rows, shares.loads, config.sp_size)

    def require_complete(self, trained: int) -> None:
        """Raises LearnerError unless the tokens that ranks `trained` are, all together, those of the mini-batch.

        Of ranks that share rows, the first one's count. A collective.
        """
        if world_size() != len(self.loads) * self.sp_size:
            return
        expected = sum(sum(sample.loss_mask) for sample in self.with_gradient)
        total = int(sum_over_ranks([trained])[0])
        if total != expected:
            raise LearnerError(
                f"the mini-batch has {expected} tokens to train, but ranks trained {total}; this is a fault of the "
                "learner: please report it"
            )


def count(samples: Iterable[TrainSample]) -> GlobalCounts:
    """What losses over `samples` are divided by."""
    lengths = [sample.trained_tokens for sample in samples]
    return GlobalCounts(len(lengths), sum(lengths))


def by_sample(row: PackedRow, values: torch.Tensor) -> Sequence[torch.Tensor]:
    """The values of a row's trained tokens, rollout by rollout."""
    return values.split([sample.trained_tokens for sample in row.samples])
