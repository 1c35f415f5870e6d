"""Adapters in a live model: put in, switched off, found again."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trainer.learner.lora.config import LoraConfig
from trainer.learner.moe.mixtures import mixture_of

ADAPTER = "default"
"""peft's name of the only adapter."""


class LoraError(ValueError):
    """Adapters that cannot be put into the model."""


def insert_adapters(model: Any, config: LoraConfig) -> None:
    """Put adapters into the model, equal on all ranks and at first without effect; nothing else stays trainable.

    Raises:
        LoraError: an entry of `target_modules` names no layer that can have an adapter.
    """
    import peft

    targets = _targets(model, config)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # peft only divides by it
        lora_dropout=config.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        peft.inject_adapter_in_model(settings, model, ADAPTER)


@contextmanager
def adapters_off(model: torch.nn.Module) -> Iterator[None]:
    """The base alone, for passes without gradient."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    # not peft's enable_adapters: it also changes which weights are trained, under ZeRO's hooks
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def _targets(model: Any, config: LoraConfig) -> list[str]:
    found = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    found.discard("lm_head")  # an output head may be tied to the embedding
    mixture = mixture_of(model)
    if mixture is not None:
        # peft would take these names for the fused experts, which have no merged form here
        found -= {mixture.gate, mixture.up, mixture.down}
    if config.target_modules == "all-linear":
        return sorted(found)
    for target in config.target_modules:
        if target not in found:
            raise LoraError(
                f"learner.lora.target_modules: no layer of the model that can have adapters is called {target!r}; "
                f"there are {', '.join(sorted(found))}" + ("; experts get none" if mixture else "")
            )
    return list(config.target_modules)


def scaling_of(model: torch.nn.Module) -> float | None:
    """How often the adapters of a model count, None if it has none."""
    settings = getattr(model, "peft_config", {}).get(ADAPTER)
    return None if settings is None else float(settings.lora_alpha) / settings.r
