"""What ranks tell each other besides gradients. Every function is a collective; alone, a rank hears itself."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


def world_size() -> int:
    """Number of connected ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(value: Any) -> list[Any]:
    """The value of each rank, on all of them."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Entry by entry."""
    totals = torch.tensor(list(values), dtype=torch.float64)
    if world_size() > 1:
        dist.all_reduce(totals)
    return [float(total) for total in totals]


def on_any_rank(flag: bool) -> bool:
    """Whether it is so on some rank."""
    return sum_over_ranks([float(flag)])[0] > 0
