"""Activations in host memory between the forward and the backward pass."""

from typing import Any

import torch


def activations_on_host(tokens: int) -> torch.autograd.graph.saved_tensors_hooks:
    """A context in whose forward pass what is saved of [1, tokens, ..] tensors moves to the host until it is needed.

    With gradient checkpointing these are the inputs of layers. Weights that are saved stay where they are: under
    ZeRO-3 a copy of one would be a whole gathered tensor.
    """

    def pack(tensor: torch.Tensor) -> Any:
        if tensor.dim() < 3 or tensor.shape[:2] != (1, tokens) or not tensor.is_floating_point():
            return tensor
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        # waits for the copy: the caching allocator may hand the memory of `tensor` on as soon as this returns
        host.copy_(tensor)
        return tensor.device, host

    def unpack(saved: Any) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        device, host = saved
        return host.to(device, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
