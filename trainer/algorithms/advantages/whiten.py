"""Whitening over a batch: mean 0 and standard deviation 1 over its sampled tokens."""

import torch
from jaxtyping import Float, Int

from trainer.algorithms.advantages.base import PART_TOKENS

EPSILON = 1e-8


def whiten(values: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, " N"]:
    """(v - mean) / sqrt(unbiased variance + 1e-8) in float32; exactly 0 where all values are equal, one alone too."""
    if len(values) == 0:
        return torch.zeros(0, dtype=torch.float32)
    parts = values.float().split(PART_TOKENS)
    # float64 sums up to 2**29 equal values of float32 exactly: their mean is the value itself, and centred they are 0.
    mean = sum(float(part.double().sum()) for part in parts) / len(values)
    deviation = _deviation(sum(float((part.double() - mean).square_().sum()) for part in parts), len(values))
    whitened = torch.empty_like(values, dtype=torch.float32)
    for part, place in zip(parts, whitened.split(PART_TOKENS), strict=True):
        place.copy_((part.double() - mean) / deviation)
    return whitened


def whiten_rollouts(values: Float[torch.Tensor, " R"], lengths: Int[torch.Tensor, " R"]) -> Float[torch.Tensor, " R"]:
    """The same for values that all tokens of a rollout share: each counts once for each of its tokens. In float64."""
    if len(values) == 0 or bool(values.min() == values.max()):
        return torch.zeros_like(values)
    tokens = int(lengths.sum())
    centred = values - (values * lengths).sum() / tokens
    return centred / _deviation(float((centred**2 * lengths).sum()), tokens)


def _deviation(squares: float, count: int) -> float:
    return (squares / max(count - 1, 1) + EPSILON) ** 0.5
