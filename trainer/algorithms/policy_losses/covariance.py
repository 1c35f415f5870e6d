"""Covariance of log-probability and advantage, token by token: tokens high in both are what drives entropy down.

Cui et al., The Entropy Mechanism of RL for Reasoning LMs, 2025 (arXiv:2505.22617). Which tokens are high depends on the
other tokens. The choice is therefore made over the whole mini-batch, before it is cut into micro-batches.
"""

import torch
from jaxtyping import Bool, Float

from trainer.algorithms.policy_losses.base import LossInputs


def token_covariance(
    advantages: Float[torch.Tensor, " N"], logprobs: Float[torch.Tensor, " N"]
) -> Float[torch.Tensor, " N"]:
    """(A - mean A)(log pi - mean log pi) of each token, in float64; means over all N."""
    advantages, logprobs = advantages.detach().double(), logprobs.detach().double()
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())


def selection_size(share: float, tokens: int) -> int:
    """Number of tokens to choose: the share rounded down, but one at least."""
    return min(max(int(share * tokens), 1), tokens)


def require_selection(inputs: LossInputs, loss: str) -> Bool[torch.Tensor, " N"]:
    """The tokens chosen beforehand.

    Raises:
        ValueError: none were chosen.
    """
    if inputs.selected is None:
        raise ValueError(
            f"policy_loss {loss!r} got selected=None; call its `select` option once for the whole mini-batch"
        )
    return inputs.selected
