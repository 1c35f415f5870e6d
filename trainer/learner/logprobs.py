"""Log-probabilities of given tokens in bounded memory: logits of a few hundred tokens exist at a time, never all.

`LogProbHead` takes the place of a model's output head, so that under ZeRO-3 the head's weight is gathered by the hooks
of its own module, once per pass.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import nn
from torch.autograd.function import once_differentiable

_ROWS = 1024
"""Of a weight, brought to another precision at a time."""


class _ChunkedLogProbs(torch.autograd.Function):
    """log p[target] of p = softmax(hidden @ weight.T / temperature), and of p its entropy, its sum of squares, and
    whether target is its largest. The last two have no gradient.

    Forward goes token by token, `chunk` at a time. Backward computes the same logits again, but goes vocabulary by
    vocabulary: the gradient of a part of the weight is then done at once, not summed up over chunks.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        target: torch.Tensor,
        temperature: float,
        chunk: int,
        products: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        logprobs = torch.empty(len(target), dtype=torch.float32, device=hidden.device)
        entropy, squares, top1 = (torch.empty_like(logprobs) for _ in range(3))
        normaliser = torch.empty_like(logprobs)
        for start in range(0, len(target), chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part].to(products), weight, temperature)
            largest = logits.amax(-1)
            powers = (logits - largest[:, None]).exp_()
            total = powers.sum(-1)
            lse = largest + total.log()
            taken = logits.gather(-1, target[part, None])[:, 0]
            normaliser[part] = lse
            logprobs[part] = taken - lse
            top1[part] = (taken >= largest).float()
            entropy[part] = lse - _dot(powers, logits) / total
            squares[part] = _dot(powers, powers) / total.square()
            # else they would stand beside those of the next chunk
            del logits, powers
        ctx.save_for_backward(hidden, weight, target, normaliser, entropy)
        ctx.temperature, ctx.chunk, ctx.products = temperature, chunk, products
        ctx.mark_non_differentiable(squares, top1)
        ctx.set_materialize_grads(False)
        return logprobs, entropy, squares, top1

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: torch.Tensor | None, entropy_grad: torch.Tensor | None, *_none: None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None, None]:
        hidden, weight, target, normaliser, entropy = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        tokens, vocabulary = len(target), len(weight)
        grad = torch.zeros_like(normaliser) if grad is None else grad / ctx.temperature
        entropy_grad = None if entropy_grad is None else entropy_grad / ctx.temperature
        grad_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        precision, hidden = hidden.dtype, hidden.to(ctx.products)
        # logits with what is made of them, and rows of the weight: no more than forward has of logits at a time
        size = max(ctx.chunk * vocabulary // (2 * max(tokens, hidden.shape[1])), 1)
        for start in range(0, vocabulary if tokens else 0, size):
            part = slice(start, start + size)
            rows = weight[part].to(ctx.products)
            logp = _logits(hidden, rows, ctx.temperature).sub_(normaliser[:, None])
            if entropy_grad is None:
                # d log p[target] / d logits = onehot(target) - p
                dlogits = logp.exp_().mul_(-grad[:, None])
            else:
                # d entropy / d logits = -p (log p + entropy)
                dlogits = (logp + entropy[:, None]).mul_(-entropy_grad[:, None])
                dlogits = dlogits.sub_(grad[:, None]).mul_(logp.exp_())
            here = ((target >= start) & (target < start + size)).nonzero()[:, 0]
            dlogits[here, target[here] - start] += grad[here]
            del logp
            dlogits = dlogits.to(ctx.products)
            if grad_hidden is not None:
                grad_hidden += dlogits @ rows
            if grad_weight is not None:
                grad_weight[part] = dlogits.t() @ hidden
            del dlogits
        return None if grad_hidden is None else grad_hidden.to(precision), grad_weight, None, None, None, None


def _logits(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    """In fp32. A weight of another precision than the hidden states is brought to theirs, fp32, part by part: all of it
    would be as large as the logits of many tokens.
    """
    if weight.dtype == hidden.dtype:
        logits = (hidden @ weight.t()).float()
    else:
        logits = torch.empty(len(hidden), len(weight), dtype=torch.float32, device=hidden.device)
        for start in range(0, len(weight), _ROWS):
            part = slice(start, start + _ROWS)
            torch.mm(hidden, weight[part].to(hidden.dtype).t(), out=logits[:, part])
    return logits if temperature == 1.0 else logits.div_(temperature)


def _dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Row by row, without a third array of their size."""
    return (left[:, None, :] @ right[:, :, None]).flatten()


class LogProbHead(nn.Module):
    """An output head that returns log-probs [.., N, 1] of the tokens set by `aim`, instead of logits.

    Of the last pass it also keeps `entropy` [N], in nats, with its gradient, and without one `sum_pi_squared` [N] and
    `top1` [N], 1 where the token is the likeliest of all. See `products` for `in_fp32`.
    """

    beside = ("entropy", "sum_pi_squared", "top1")
    """What it keeps of a pass, an entry a token, besides what it returns."""

    def __init__(self, head: nn.Linear, chunk: int, in_fp32: bool = False) -> None:
        super().__init__()
        if getattr(head, "bias", None) is not None:
            raise ValueError("an output head with a bias is not supported")
        self.weight = head.weight  # the very parameter, so that a tie with the embedding survives
        self.chunk = chunk
        self._products = torch.float32 if in_fp32 else head.weight.dtype
        self._target: Int[torch.Tensor, " N"] | None = None
        self._temperature = 1.0
        self.entropy: Float[torch.Tensor, " N"] | None = None
        self.sum_pi_squared: Float[torch.Tensor, " N"] | None = None
        self.top1: Float[torch.Tensor, " N"] | None = None

    def aim(self, target: Int[torch.Tensor, " N"], temperature: float) -> None:
        """Say which tokens the next pass scores, at the temperature they were sampled with."""
        self._target, self._temperature = target, temperature

    def forward(self, hidden: Float[torch.Tensor, "1 N width"]) -> Float[torch.Tensor, "1 N 1"]:
        if self._target is None or hidden.shape[:2] != (1, len(self._target)):
            raise ValueError(
                f"hidden states {tuple(hidden.shape)} for targets {None if self._target is None else len(self._target)}"
            )
        logprobs, self.entropy, self.sum_pi_squared, self.top1 = _ChunkedLogProbs.apply(
            hidden[0], self.weight, self._target, self._temperature, self.chunk, self._products
        )
        return logprobs[None, :, None]
