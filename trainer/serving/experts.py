"""Fused experts of an engine: the checkpoint tensors they are made of, and how their values are read back.

vLLM holds the experts of a layer in two parameters: `w13_weight` [experts, 2 I, H], gates above ups, and `w2_weight`
[experts, H, I]. Its CPU kernels pad I and then move elements around within each expert. Where to, is asked of the very
function that moves them: a numbering of the elements goes through it, and comes out as a map.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import nn

PLAIN_BACKENDS = ("TRITON", "BATCHED_TRITON")
"""Those of vLLM's that compute with experts as they were loaded."""


def is_fused_experts(module: nn.Module) -> bool:
    """Whether a module of an engine holds the experts of a layer."""
    return hasattr(module, "w13_weight") and hasattr(module, "w2_weight")


def expert_sources(module_name: str, module: Any, parameter: str) -> tuple[str, ...]:
    """Checkpoint names of the matrices in one of the two parameters, in their order.

    Raises:
        TypeError: the experts lie in a way that cannot be read back.
    """
    known = parameter in ("w13_weight", "w2_weight") and (_prepacked_for(module) or _backend(module) in PLAIN_BACKENDS)
    if not known or module.local_num_experts != module.global_num_experts:
        raise TypeError(
            f"{module_name}.{parameter} ({type(module).__name__}, backend {_backend(module)}, "
            f"{module.local_num_experts} of {module.global_num_experts} experts here): weight sync cannot read these "
            "experts back; serve without quantisation and without expert parallelism, on CPUs or by vLLM's triton "
            "kernels"
        )
    stem = module_name.removesuffix(".routed_experts")
    names = (
        (module.ckpt_gate_proj_name, module.ckpt_up_proj_name)
        if parameter == "w13_weight"
        else (module.ckpt_down_proj_name,)
    )
    return tuple(f"{stem}.{expert}.{name}.weight" for expert in range(module.global_num_experts) for name in names)


def expert_width(module: Any, parameter: str) -> int:
    """Columns of each matrix in the checkpoint, which the engine may have padded."""
    config = module.moe_config
    if parameter == "w13_weight":
        return int(config.hidden_dim_unpadded)
    return int(config.intermediate_size_per_partition_unpadded)


def expert_columns(module: Any, parameter: str, columns: torch.Tensor) -> torch.Tensor:
    """Some columns of all matrices of a parameter, stacked in the order of `expert_sources`, as the kernel has them."""
    weight = getattr(module, parameter)
    experts, rows, width = weight.shape
    isa = _prepacked_for(module)
    if isa is not None:
        places = _places(rows, width, isa, weight.dtype)[:, columns].flatten()
        weight = weight.reshape(experts, -1)[:, places].view(experts, rows, len(columns))
    else:
        weight = weight[:, :, columns]
    if parameter == "w13_weight":
        size = expert_width(module, "w2_weight")
        gate, up = weight.chunk(2, 1)
        weight = torch.cat([gate[:, :size], up[:, :size]], 1)
    else:
        weight = weight[:, : expert_width(module, "w13_weight")]
    return weight.reshape(-1, len(columns))


def pack_reloaded_experts(model: nn.Module) -> None:
    """Move the elements of experts that were just loaded to where a CPU kernel expects them.

    vLLM does so when an engine starts, but not when its weights are loaded anew.
    """
    for module in model.modules():
        if is_fused_experts(module) and _prepacked_for(module) is not None:
            module.quant_method.moe_kernel.fused_experts.process_weights_after_loading(module)  # type: ignore[union-attr, operator]


def _backend(module: Any) -> str:
    return getattr(getattr(module.quant_method, "unquantized_backend", None), "name", "unknown")


def _prepacked_for(module: Any) -> str | None:
    """The instruction set that a CPU kernel moved the elements for, None if they lie where they were loaded."""
    kernel = getattr(module.quant_method, "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    return None if getattr(experts, "_use_zentorch", False) else getattr(experts, "isa", None)


@lru_cache(maxsize=8)
def _places(rows: int, width: int, isa: str, dtype: torch.dtype) -> torch.Tensor:
    """[rows, width] where each element of an expert's matrix lies in the packed one."""
    from vllm._custom_ops import cpu_prepack_moe_weight

    # digit by digit: even bfloat16 tells 256 numbers apart
    numbers, moved = torch.arange(rows * width), torch.zeros(rows * width, dtype=torch.long)
    for shift in range(0, max(int(numbers[-1]).bit_length(), 1), 8):
        digit = (numbers >> shift & 255).to(dtype).view(1, rows, width)
        moved += cpu_prepack_moe_weight(digit, isa).flatten().long() << shift
    places = torch.empty_like(numbers)
    places[moved] = numbers
    return places.view(rows, width)
