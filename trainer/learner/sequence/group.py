"""The ranks that compute one row together."""

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from trainer.learner.config import LearnerConfig
from trainer.learner.sequence.parts import RowPart, part_of
from trainer.learner.sequence.traffic import exchange, put_together

if TYPE_CHECKING:
    from trainer.learner.packing import PackedRow


@dataclass(frozen=True)
class SequenceGroup:
    """`size` ranks, of which this one is number `place`; `channel` is torch's group of them."""

    size: int
    place: int
    channel: Any

    def part(self, row: "PackedRow") -> RowPart:
        """What this rank computes of a row."""
        return part_of(row, self.place, self.size)

    def exchange(self, pieces: torch.Tensor) -> torch.Tensor:
        """See `traffic.exchange`."""
        return exchange(pieces, self.channel)

    def put_together(self, values: tuple[torch.Tensor, ...], part: RowPart, count: int) -> tuple[torch.Tensor, ...]:
        """What the group says of all `count` trained tokens of a row, of which this rank has those of its part."""
        return put_together(values, part.trained.to(values[0].device), count, self.channel)


def sequence_group(config: LearnerConfig) -> SequenceGroup | None:
    """This rank's group, None where rows are whole. A collective of all ranks, which have met before."""
    if config.sp_size == 1:
        return None
    rank = dist.get_rank()
    return SequenceGroup(config.sp_size, rank % config.sp_size, _channel(config.ranks, config.sp_size, config.timeout))


@cache
def _channel(ranks: int, size: int, timeout: float) -> Any:
    """One for all models of a rank: on GPUs each takes memory."""
    members = [list(range(start, start + size)) for start in range(0, ranks, size)]
    mine, _ = dist.new_subgroups_by_enumeration(members, timeout=timedelta(seconds=timeout))
    return mine
