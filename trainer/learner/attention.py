"""Attention over packed rows: each span attends to its prefix and causally to itself, nothing to its neighbours.

Registered with transformers under `NAME`; the model is called with `spans=row.spans`. No mask of the whole row is ever made.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from trainer.learner.packing import Span

NAME = "testgrad_packed"


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    spans: Sequence[Span] | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention per span.

    Args:
        query: [1, heads, T, head_dim]; `key` and `value`: [1, kv_heads, T, head_dim].
        spans: covers the T tokens in order, without gaps.

    Returns:
        [1, T, heads, head_dim] and no weights.

    Raises:
        ValueError: spans do not cover the row, or a sliding window is asked for, which this does not compute.
    """
    if spans is None or [s.start for s in spans[1:]] != [s.end for s in spans[:-1]] or spans[-1].end != query.shape[2]:
        raise ValueError(f"spans {spans} do not cover the row of {query.shape[2]} tokens; call the model with spans=row.spans")
    if kwargs.get("sliding_window") is not None and kwargs["sliding_window"] < query.shape[2]:
        raise ValueError("this model attends through a sliding window, which packed attention does not compute")
    grouped = query.shape[1] != key.shape[1]
    outputs = []
    for span in spans:
        q = query[:, :, span.start : span.end]
        own = slice(span.start, span.end)
        prefix = slice(span.prefix_start, span.prefix_end)
        length, shared = span.end - span.start, span.prefix_end - span.prefix_start
        if shared:
            k, v = torch.cat([key[:, :, prefix], key[:, :, own]], 2), torch.cat([value[:, :, prefix], value[:, :, own]], 2)
            visible = torch.ones(length, shared + length, dtype=torch.bool, device=q.device).tril(diagonal=shared)
        else:
            k, v, visible = key[:, :, own], value[:, :, own], None
        outputs.append(
            F.scaled_dot_product_attention(
                q, k, v, attn_mask=visible, is_causal=visible is None, scale=scaling, dropout_p=dropout, enable_gqa=grouped
            )
        )
    return torch.cat(outputs, 2).transpose(1, 2), None


def register() -> None:
    """Make `attn_implementation=NAME` known to transformers; harmless when repeated."""
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
