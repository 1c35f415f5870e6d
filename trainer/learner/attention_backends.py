"""Ways to compute attention over packed rows, and which of them a device gets.

All compute the same: what `attention.visible` says. `sdpa` goes span by span and suits CPUs; `flash` and `flex` compute
a row in one kernel.
"""

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from trainer.learner import attention, attention_flash, attention_flex
from trainer.learner.config import LearnerConfig
from trainer.learner.packing import Span
from trainer.learner.products import attention_in_fp32, in_fp32
from trainer.learner.sequence.attention import over_heads


@dataclass(frozen=True)
class Backend:
    """An attention implementation that transformers knows as `name`, and the arguments it needs for a row."""

    name: str
    arguments: Callable[[Sequence[Span], torch.device], dict[str, Any]]

    def called(self, further: str) -> "Backend":
        """The same for an implementation that is made of this one."""
        return replace(self, name=f"{self.name}_{further}")


BACKENDS = {
    "sdpa": Backend(attention.NAME, lambda spans, device: {"spans": spans}),
    "flex": Backend(attention_flex.NAME, attention_flex.arguments),
    "flash": Backend(attention_flash.NAME, attention_flash.arguments),
}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sdpa": attention.packed_attention,
    "flex": attention_flex.flex,
    "flash": attention_flash.flash_attention,
}


def backend_for(config: LearnerConfig) -> Backend:
    """What `learner.attention` says, or the fastest that there is, registered with transformers.

    Raises:
        ValueError: flash attention is asked for and not installed.
    """
    kind = _fastest(config) if config.attention == "auto" else config.attention
    if kind == "flash" and not has_flash():
        raise ValueError(
            "learner.attention is flash, but flash_attn is not installed; install it, or take attention: flex"
        )
    backend, function = BACKENDS[kind], _FUNCTIONS[kind]
    if in_fp32(config):
        backend, function = backend.called("in_fp32"), attention_in_fp32(function)
    if config.sp_size > 1:
        # each rank has a part of every row
        backend, function = backend.called("over_heads"), over_heads(function)
    return _registered(backend, function)


def _registered(backend: Backend, function: Callable[..., Any]) -> Backend:
    """The backend, which `attn_implementation` may name from now on; its mask comes with its arguments."""
    # here, since the process of a flow, which computes no attention, would wait for the import
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(backend.name, function)
    AttentionMaskInterface.register(backend.name, lambda *args, **kwargs: None)
    return backend


def _fastest(config: LearnerConfig) -> str:
    if not config.gpus_per_rank:
        return "sdpa"
    return "flash" if config.dtype == "bfloat16" and has_flash() else "flex"


def has_flash() -> bool:
    """Whether flash attention is installed: by its distribution, as its successor's modules go by the same name."""
    try:
        importlib.metadata.version("flash-attn")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
