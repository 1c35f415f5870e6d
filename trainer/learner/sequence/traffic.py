"""What the ranks of a sequence group send each other in a pass, with its gradient. Every function is a collective."""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Shaped


def exchange(pieces: Shaped[torch.Tensor, "ranks size"], group: Any) -> Shaped[torch.Tensor, "ranks size"]:
    """Piece i goes to the group's rank i; returned are the pieces that came, by sender."""
    received: torch.Tensor = _Exchange.apply(pieces, group)
    return received


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pieces: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _swap(pieces, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        # the gradient of what was received goes back to who sent it
        return _swap(grad, ctx.group), None


def _swap(pieces: torch.Tensor, group: Any) -> torch.Tensor:
    pieces = pieces.contiguous()
    received = torch.empty_like(pieces)
    dist.all_to_all_single(received, pieces, group=group)
    return received


def put_together(
    values: tuple[Float[torch.Tensor, " n"], ...], places: Int[torch.Tensor, " n"], count: int, group: Any
) -> tuple[Float[torch.Tensor, " N"], ...]:
    """Each of `values` whole, `count` entries, of which this rank has those at `places` and the group has all.

    The gradient of a whole goes to this rank's entries alone: all ranks of the group compute the same of it, and each
    answers for its own.
    """
    whole: tuple[torch.Tensor, ...] = _PutTogether.apply(places, count, group, *values)
    return whole


class _PutTogether(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, places: torch.Tensor, count: int, group: Any, *values: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        whole = values[0].new_zeros(len(values), count)
        for line, value in zip(whole, values, strict=True):
            line[places] = value
        # nobody else has an entry there: a sum with zeros is exact
        dist.all_reduce(whole, group=group)
        lines = tuple(line.clone() for line in whole)
        ctx.save_for_backward(places)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(line for line, needed in zip(lines, ctx.needs_input_grad[3:], strict=True) if not needed)
        )
        return lines

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return None, None, None, *(None if grad is None else grad[places] for grad in grads)
