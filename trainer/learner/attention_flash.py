"""Attention over packed rows in one call of flash attention's kernel for sequences of unequal length.

A span's queries are one sequence; its keys are those of its prefix and its own, one after the other. The kernel's
causal mask is aligned at the end, so that a branch sees all of its prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int

from trainer.learner.attention import require_plain
from trainer.learner.packing import Span

NAME = "testgrad_packed_varlen"
"""Without the word flash: transformers would look for a kernel of its own under such a name."""


@dataclass(frozen=True)
class Layout:
    """Queries of span s are tokens [query_ends[s], query_ends[s + 1]) of a row; its keys are the tokens of the row that
    `keys` names from key_ends[s] to key_ends[s + 1]. `keys` is None if those are the row as it is.
    """

    query_ends: Int[torch.Tensor, " spans+1"]
    key_ends: Int[torch.Tensor, " spans+1"]
    keys: Int[torch.Tensor, " K"] | None
    longest_query: int
    longest_keys: int


def layout_of(spans: Sequence[Span], device: torch.device) -> Layout:
    """The sequences that a row consists of."""
    query_lengths = [span.end - span.start for span in spans]
    key_lengths = [span.prefix_end - span.prefix_start + span.end - span.start for span in spans]
    shares = any(span.prefix_end > span.prefix_start for span in spans)
    pieces = [
        torch.cat([torch.arange(span.prefix_start, span.prefix_end), torch.arange(span.start, span.end)])
        for span in spans
    ]
    return Layout(
        _ends(query_lengths, device),
        _ends(key_lengths, device),
        torch.cat(pieces).to(device) if shares else None,
        max(query_lengths),
        max(key_lengths),
    )


def _ends(lengths: Sequence[int], device: torch.device) -> Int[torch.Tensor, " spans+1"]:
    return torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)


def arguments(spans: Sequence[Span], device: torch.device) -> dict[str, Any]:
    """What the model is called with for a row; made once for all layers."""
    return {"layout": layout_of(spans, device)}


def flash_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """See `attention.packed_attention`; the kernel itself is `varlen_kernel`."""
    if layout is None:
        raise ValueError("the model must be called with the layout of its row; see attention_flash.arguments")
    require_plain(kwargs, layout.longest_keys)
    # [1, heads, T, width] to [T, heads, width]
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if layout.keys is not None:
        k, v = k[layout.keys], v[layout.keys]
    return varlen_kernel(q, k, v, layout, scaling, dropout)[None], None


def varlen_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scaling: float | None, dropout: float
) -> torch.Tensor:
    """flash_attn's; heads that share keys are its business too."""
    from flash_attn import flash_attn_varlen_func

    output: torch.Tensor = flash_attn_varlen_func(
        query,
        key,
        value,
        cu_seqlens_q=layout.query_ends,
        cu_seqlens_k=layout.key_ends,
        max_seqlen_q=layout.longest_query,
        max_seqlen_k=layout.longest_keys,
        dropout_p=dropout,
        softmax_scale=scaling,
        causal=True,
        # an update that is replayed from the journal must give the same weights bit by bit
        deterministic=True,
    )
    return output
