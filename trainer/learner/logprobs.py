"""Log-probabilities of given tokens in bounded memory: logits of a few hundred tokens exist at a time, never all.

`LogProbHead` takes the place of a model's output head, so that under ZeRO-3 the head's weight is gathered by the hooks
of its own module, once per pass.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import nn
from torch.autograd.function import once_differentiable


class _ChunkedLogProbs(torch.autograd.Function):
    """log p[target] of p = softmax(hidden @ weight.T / temperature), the entropy of p and its sum of squares.

    Chunk by chunk, recomputed in backward. The sum of squares has no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, temperature: float, chunk: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logprobs = torch.empty(len(target), dtype=torch.float32, device=hidden.device)
        entropy = torch.empty_like(logprobs)
        squares = torch.empty_like(logprobs)
        normaliser = torch.empty_like(logprobs)
        for start in range(0, len(target), chunk):
            part = slice(start, start + chunk)
            logits = (hidden[part] @ weight.t()).float().div_(temperature)
            lse = torch.logsumexp(logits, -1)
            normaliser[part] = lse
            logprobs[part] = logits.gather(-1, target[part, None])[:, 0] - lse
            probs = (logits - lse[:, None]).exp_()
            squares[part] = (probs[:, None, :] @ probs[:, :, None]).flatten()
            entropy[part] = lse - probs.mul_(logits).sum(-1)
        ctx.save_for_backward(hidden, weight, target, normaliser, entropy)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.mark_non_differentiable(squares)
        ctx.set_materialize_grads(False)
        return logprobs, entropy, squares

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: torch.Tensor | None, entropy_grad: torch.Tensor | None, _squares_grad: None
    ) -> tuple[Any, ...]:
        hidden, weight, target, normaliser, entropy = ctx.saved_tensors
        grad = torch.zeros_like(normaliser) if grad is None else grad / ctx.temperature
        entropy_grad = None if entropy_grad is None else entropy_grad / ctx.temperature
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for start in range(0, len(target), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits = (hidden[part] @ weight.t()).float().div_(ctx.temperature)
            logp = logits.sub_(normaliser[part, None])
            if entropy_grad is None:
                # d log p[target] / d logits = onehot(target) - p
                dlogits = logp.exp_().mul_(-grad[part, None])
            else:
                # d entropy / d logits = -p (log p + entropy)
                dlogits = (logp + entropy[part, None]).mul_(-entropy_grad[part, None])
                dlogits = dlogits.sub_(grad[part, None]).mul_(logp.exp_())
            dlogits.scatter_add_(-1, target[part, None], grad[part, None])
            dlogits = dlogits.to(hidden.dtype)
            grad_hidden[part] = dlogits @ weight
            grad_weight += dlogits.t() @ hidden[part]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None


class LogProbHead(nn.Module):
    """An output head that returns log-probs [.., N, 1] of the tokens set by `aim`, instead of logits.

    Of the last pass it also keeps `entropy` [N], in nats, with its gradient, and `sum_pi_squared` [N], without one.
    """

    def __init__(self, head: nn.Linear, chunk: int) -> None:
        super().__init__()
        if getattr(head, "bias", None) is not None:
            raise ValueError("an output head with a bias is not supported")
        self.weight = head.weight  # the very parameter, so that a tie with the embedding survives
        self.chunk = chunk
        self._target: Int[torch.Tensor, " N"] | None = None
        self._temperature = 1.0
        self.entropy: Float[torch.Tensor, " N"] | None = None
        self.sum_pi_squared: Float[torch.Tensor, " N"] | None = None

    def aim(self, target: Int[torch.Tensor, " N"], temperature: float) -> None:
        """Say which tokens the next pass scores, at the temperature they were sampled with."""
        self._target, self._temperature = target, temperature

    def forward(self, hidden: Float[torch.Tensor, "1 N width"]) -> Float[torch.Tensor, "1 N 1"]:
        if self._target is None or hidden.shape[:2] != (1, len(self._target)):
            raise ValueError(
                f"hidden states {tuple(hidden.shape)} for targets {None if self._target is None else len(self._target)}"
            )
        logprobs, self.entropy, self.sum_pi_squared = _ChunkedLogProbs.apply(
            hidden[0], self.weight, self._target, self._temperature, self.chunk
        )
        return logprobs[None, :, None]
