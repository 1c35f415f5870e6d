"""Attention over packed rows: each span attends to its prefix and causally to itself, nothing to its neighbours.

Registered with transformers under `NAME`; the model is called with `spans=row.spans`. No mask of the whole row is ever
made.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool

from trainer.learner.packing import Span

NAME = "testgrad_packed"
_FURTHER = ("softcap", "s_aux", "position_bias", "indices", "block_indices")
"""What models of transformers ask of their attention, of the Gemma 2, gpt-oss, T5 and DeepSeek families by name."""


def visible(spans: Sequence[Span]) -> Bool[torch.Tensor, "T T"]:
    """True where a token (row) sees another (column). The definition; nothing that trains ever makes this mask."""
    tokens = spans[-1].end
    mask = torch.zeros(tokens, tokens, dtype=torch.bool)
    for span in spans:
        length = span.end - span.start
        mask[span.start : span.end, span.start : span.end] = torch.ones(length, length, dtype=torch.bool).tril()
        mask[span.start : span.end, span.prefix_start : span.prefix_end] = True
    return mask


def require_plain(arguments: Mapping[str, Any], tokens: int) -> None:
    """Refuse a model whose attention over `tokens` is more than a softmax of scaled products: of what transformers
    hands an attention besides, nothing is computed here.

    Raises:
        ValueError: it is.
    """
    if arguments.get("sliding_window") is not None and arguments["sliding_window"] < tokens:
        raise ValueError("this model attends through a sliding window, which packed attention does not compute")
    for name in _FURTHER:
        if arguments.get(name) is not None:
            raise ValueError(f"this model's attention has {name}, which packed attention does not compute")


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
        ValueError: spans do not cover the row, or the model asks for what this does not compute.
    """
    if spans is None or [s.start for s in spans[1:]] != [s.end for s in spans[:-1]] or spans[-1].end != query.shape[2]:
        raise ValueError(
            f"spans {spans} do not cover the row of {query.shape[2]} tokens; call the model with spans=row.spans"
        )
    require_plain(kwargs, query.shape[2])
    grouped = query.shape[1] != key.shape[1]
    sizes = [span.end - span.start for span in spans]
    # split, not slices: the gradient of a slice is as large as the whole row
    pieces = [tensor.split(sizes, 2) for tensor in (query, key, value)]
    place = {(span.start, span.end): i for i, span in enumerate(spans)}
    outputs = []
    for i, span in enumerate(spans):
        q, k, v = (piece[i] for piece in pieces)
        if span.prefix_end > span.prefix_start:
            prefix = place[span.prefix_start, span.prefix_end]
            k, v = torch.cat([pieces[1][prefix], k], 2), torch.cat([pieces[2][prefix], v], 2)
        lag = k.shape[2] - q.shape[2]
        visible = _causal(q.shape[2], k.shape[2], q.device) if lag else None
        outputs.append(
            F.scaled_dot_product_attention(
                q, k, v, attn_mask=visible, is_causal=not lag, scale=scaling, dropout_p=dropout, enable_gqa=grouped
            )
        )
    return torch.cat(outputs, 2).transpose(1, 2), None


def _causal(length: int, total: int, device: torch.device) -> torch.Tensor:
    """[length, total] True where one of the last `length` of `total` tokens sees another."""
    return torch.ones(length, total, dtype=torch.bool, device=device).tril(total - length)
