"""Products of matrices in bfloat16, computed in fp32 on CPUs that are faster that way.

A product of two numbers in bfloat16 is exact in fp32, and sums are kept in fp32 either way: only the order of additions
differs. What a linear layer says, and what it stores for its backward pass, stays in bfloat16; attention stores its
inputs in fp32.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import nn
from torch.autograd.function import once_differentiable

from trainer.learner.config import LearnerConfig


def in_fp32(config: LearnerConfig) -> bool:
    """Whether numbers in bfloat16 are multiplied in fp32: as `learner.matmul_dtype` says, or where it is faster."""
    if config.dtype != "bfloat16" or config.gpus_per_rank:
        return False
    return fp32_is_faster() if config.matmul_dtype == "auto" else config.matmul_dtype == "float32"


def fp32_is_faster() -> bool:
    """Whether this CPU multiplies matrices faster in fp32 than in bfloat16.

    So it is on x86 without AMX: an Intel Xeon did 320 GFLOP/s in fp32, 168 in bfloat16, and 58 without its instructions
    for bfloat16. It is not measured as a run starts, for a machine must come to the same bits each time.
    """
    able = torch.cpu.get_capabilities()
    return bool(able.get("architecture") == "x86_64" and not able.get("amx_bf16"))


def multiply_in_fp32(model: nn.Module) -> None:
    """Have the model's linear layers compute in fp32 from now on."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Fp32Linear


class Fp32Linear(nn.Linear):
    """A linear layer of weights in bfloat16 that multiplies in fp32, in both passes."""

    def forward(self, x: Float[torch.Tensor, "*rows width"]) -> Float[torch.Tensor, "*rows out"]:
        product: torch.Tensor = _Product.apply(x, self.weight, self.bias)
        return product


class _Product(torch.autograd.Function):
    """x @ weight.T + bias. Copies in fp32 are made anew in the backward pass, for which ZeRO-3 gathers the weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        product = x.float() @ weight.float().t()
        return (product if bias is None else product.add_(bias.float())).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad, precision = grad.float(), grad.dtype
        rows = grad.flatten(0, -2)
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        grad_x = (grad @ weight.float()).to(precision) if wants_x else None
        grad_weight = (rows.t() @ x.flatten(0, -2).float()).to(precision) if wants_weight else None
        return grad_x, grad_weight, rows.sum(0).to(precision) if wants_bias else None


def attention_in_fp32(attend: Callable[..., Any]) -> Callable[..., Any]:
    """The attention function with its inputs in fp32, and what it says in their own precision."""

    def attention(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **arguments: Any,
    ) -> tuple[torch.Tensor, None]:
        said, _ = attend(module, query.float(), key.float(), value.float(), attention_mask, **arguments)
        return said.to(query.dtype), None

    return attention
