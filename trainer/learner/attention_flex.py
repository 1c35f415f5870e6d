"""Attention over packed rows by torch's flex attention, which skips the blocks of a row that nobody sees."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from trainer.learner.attention import require_plain
from trainer.learner.packing import Span

NAME = "testgrad_packed_flex"
BLOCK = 128
"""Tokens of a block, flex attention's own."""
_OPTIONS = {"FORCE_USE_FLEX_ATTENTION": True}
"""Rows of less than a block get the kernel of the others too. Theirs, made for decoding, is not to be had for some
numbers of heads that share keys, and its tile is that of the first short row that came.
"""
_CHUNK = 64
"""Blocks of queries whose keys are counted at once."""


def arguments(spans: Sequence[Span], device: torch.device) -> dict[str, Any]:
    """What the model is called with for a row; made once for all layers."""
    return {"block_mask": block_mask(spans, device)}


def block_mask(spans: Sequence[Span], device: torch.device) -> BlockMask:
    """Who sees whom, in blocks. What torch's `create_block_mask` makes of the same, but by counting: that would lay out
    a mask of the whole row first, ten bytes for each pair of tokens.
    """
    sizes = torch.tensor([span.end - span.start for span in spans])
    tokens = spans[-1].end

    def per_token(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values).repeat_interleave(sizes).to(device)

    start = per_token([span.start for span in spans])
    prefix_start = per_token([span.prefix_start for span in spans])
    prefix_end = per_token([span.prefix_end for span in spans])

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
        own = (key >= start[query]) & (key <= query)
        return own | ((key >= prefix_start[query]) & (key < prefix_end[query]))

    own = (start, torch.arange(1, tokens + 1, device=device))
    pairs = _pairs(*own, tokens) + _pairs(prefix_start, prefix_end, tokens)
    whole = pairs == BLOCK * BLOCK
    return BlockMask.from_kv_blocks(
        *_listed((pairs > 0) & ~whole),
        *_listed(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(tokens, tokens),
    )


def _pairs(first: Int[torch.Tensor, " T"], end: Int[torch.Tensor, " T"], tokens: int) -> Int[torch.Tensor, "Q K"]:
    """How many pairs of a query and a key there are in each two blocks, if query t sees keys first[t] to end[t]."""
    missing = -tokens % BLOCK
    begins = torch.arange(0, tokens, BLOCK, device=first.device)
    counts = []
    for lower, upper in zip(
        F.pad(first, (0, missing)).split(_CHUNK * BLOCK), F.pad(end, (0, missing)).split(_CHUNK * BLOCK), strict=True
    ):
        keys = torch.minimum(upper[:, None], begins + BLOCK) - torch.maximum(lower[:, None], begins)
        counts.append(keys.clamp(min=0).view(-1, BLOCK, len(begins)).sum(1))
    return torch.cat(counts)


def _listed(blocks: Int[torch.Tensor, "Q K"]) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks of keys are meant for each block of queries, and which, these first: as a `BlockMask` has it."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1).int()[None, None], order.int()[None, None]


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
    require_plain(kwargs, query.shape[2])
    if dropout:
        raise ValueError(f"flex attention has no dropout, and this model asks for {dropout}; set attention_dropout: 0")
    grouped = query.shape[1] != key.shape[1]
    kernel = _kernel(query.is_cuda)
    output = kernel(
        query, key, value, block_mask=block_mask, scale=scaling, enable_gqa=grouped, kernel_options=_OPTIONS
    )
    return output.transpose(1, 2), None


@cache
def _kernel(compiled: bool) -> Callable[..., Any]:
    # only compiled is it one kernel; rows differ in length, and must not be compiled one by one
    kernel: Any = torch.compile(flex_attention, dynamic=True) if compiled else flex_attention
    return kernel
