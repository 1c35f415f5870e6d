"""Attention over rows whose tokens are spread over a sequence group: exchanged for heads, and back.

Queries, keys and values [1, heads, L, width] of a rank's L tokens become those of all tokens, S L of them, in an S-th
of the heads; any attention over whole rows computes them, and its output goes back. Where keys have fewer heads than
there are ranks, or a number that ranks do not divide, heads of keys and values are repeated until they do.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float

from trainer.learner.sequence.group import SequenceGroup

Attention = Callable[..., tuple[torch.Tensor, None]]


def over_heads(attend: Attention) -> Attention:
    """`attend`, which sees whole rows, as an attention over parts of them; called with `sequence`, the group."""

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        sequence: SequenceGroup | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        if sequence is None:
            raise ValueError("the model must be called with the sequence group of this rank")
        query, key, value = _tokens_for_heads(query, key, value, sequence)
        output, _ = attend(module, query, key, value, attention_mask, **kwargs)
        return _heads_for_tokens(output, sequence), None

    return attention


def _tokens_for_heads(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: SequenceGroup
) -> list[torch.Tensor]:
    """[1, heads, L, width] to [1, heads / S, S L, width], all three in one exchange."""
    size, heads = group.size, query.shape[1]
    if heads % size:
        raise ValueError(f"{heads} heads do not divide by learner.sp_size {size}")
    times = math.lcm(key.shape[1], size) // key.shape[1]
    if times > 1:
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    states = [query, key, value]
    received = group.exchange(torch.cat([state[0].reshape(size, -1) for state in states], 1))
    pieces = received.split([state.numel() // size for state in states], 1)
    return [_joined(piece, state, size) for piece, state in zip(pieces, states, strict=True)]


def _joined(piece: torch.Tensor, like: torch.Tensor, size: int) -> torch.Tensor:
    """Pieces by sender, which has the tokens before those of the next, as one row."""
    _, heads, tokens, width = like.shape
    by_sender = piece.view(size, heads // size, tokens, width)
    return by_sender.transpose(0, 1).reshape(1, heads // size, size * tokens, width)


def _heads_for_tokens(
    output: Float[torch.Tensor, "1 tokens heads width"], group: SequenceGroup
) -> Float[torch.Tensor, "1 part all_heads width"]:
    _, tokens, heads, width = output.shape
    received = group.exchange(output[0].reshape(group.size, -1))
    by_sender = received.view(group.size, tokens // group.size, heads, width)
    return by_sender.transpose(0, 1).reshape(1, tokens // group.size, group.size * heads, width)
