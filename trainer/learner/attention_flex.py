"""Attention over packed rows by torch's flex attention, which skips the blocks of a row that nobody sees."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from trainer.learner.attention import require_whole_window
from trainer.learner.packing import Span

NAME = "testgrad_packed_flex"


def arguments(spans: Sequence[Span], device: torch.device) -> dict[str, Any]:
    """What the model is called with for a row; made once for all layers."""
    return {"block_mask": block_mask(spans, device)}


def block_mask(spans: Sequence[Span], device: torch.device) -> BlockMask:
    """Who sees whom, in blocks."""
    sizes = torch.tensor([span.end - span.start for span in spans])

    def per_token(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values).repeat_interleave(sizes).to(device)

    start = per_token([span.start for span in spans])
    prefix_start = per_token([span.prefix_start for span in spans])
    prefix_end = per_token([span.prefix_end for span in spans])

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
        own = (key >= start[query]) & (key <= query)
        return own | ((key >= prefix_start[query]) & (key < prefix_end[query]))

    tokens = spans[-1].end
    return create_block_mask(sees, B=None, H=None, Q_LEN=tokens, KV_LEN=tokens, device=str(device))


def flex(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    block_mask: BlockMask | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """See `attention.packed_attention`."""
    if block_mask is None:
        raise ValueError("the model must be called with the mask of its row; see attention_flex.arguments")
    require_whole_window(kwargs, query.shape[2])
    if dropout:
        raise ValueError(f"flex attention has no dropout, and this model asks for {dropout}; set attention_dropout: 0")
    grouped = query.shape[1] != key.shape[1]
    kernel = _kernel(query.is_cuda)
    output = kernel(query, key, value, block_mask=block_mask, scale=scaling, enable_gqa=grouped)
    return output.transpose(1, 2), None


@cache
def _kernel(compiled: bool) -> Callable[..., Any]:
    # only compiled is it one kernel; rows differ in length, and must not be compiled one by one
    kernel: Any = torch.compile(flex_attention, dynamic=True) if compiled else flex_attention
    return kernel
