"""The critic's head: how much reward is still to come, token by token."""

import torch
from jaxtyping import Float, Int
from torch import nn


class ValueHead(nn.Module):
    """An output head that returns values [.., N, 1] instead of logits; 0 everywhere before it is trained."""

    beside: tuple[str, ...] = ()
    """It keeps nothing of a pass; see `LogProbHead`."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width, dtype=dtype))

    def aim(self, target: Int[torch.Tensor, " N"], temperature: float) -> None:
        """A value is foretold before its token is known, whatever that token is."""

    def forward(self, hidden: Float[torch.Tensor, "1 N width"]) -> Float[torch.Tensor, "1 N 1"]:
        return (hidden @ self.weight.t()).float()
