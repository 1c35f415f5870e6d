"""From the parameters that are trained to the tensors that a checkpoint of the model has.

Three things may lie between: adapters are merged into the layers they sit beside, fused experts come apart, and some
families name layers otherwise. The base is never changed: what is made is made anew, a few parameters at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.learner.lora.adapters import ADAPTER, scaling_of
from trainer.learner.moe.mixtures import Mixture, mixture_of

Named = tuple[str, torch.Tensor]

_BASE = ".base_layer"
_A, _B = f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight"


@dataclass(frozen=True)
class Recipe:
    """Which parameters are needed whole, by name, and the tensors that are made of them."""

    sources: tuple[str, ...]
    make: Callable[[Sequence[torch.Tensor]], Iterable[Named]]


def checkpoint_layout(model: Any, names: Iterable[str]) -> list[Recipe]:
    """Recipes for all tensors of a checkpoint, from parameters of those names, in their order."""
    return recipes(names, mixture_of(model), scaling_of(model))


def adapter_layout(names: Iterable[str]) -> list[Recipe]:
    """Recipes for the adapters alone, under the names that peft gives them in an adapter's folder."""

    def renamed(name: str) -> Callable[[Sequence[torch.Tensor]], Iterable[Named]]:
        return lambda tensors: [(f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}", tensors[0])]

    return [Recipe((name,), renamed(name)) for name in names if name.endswith((_A, _B))]


def recipes(names: Iterable[str], mixture: Mixture | None, scaling: float | None) -> list[Recipe]:
    """See `checkpoint_layout`; `scaling` is how often adapters count, None where there are none."""
    names = list(names)
    known = set(names)
    made = []
    for name in names:
        if name.endswith((_A, _B)):
            continue
        stem = name.removesuffix(".weight").removesuffix(_BASE)
        adapters = (f"{stem}{_A}", f"{stem}{_B}")
        plain = name.replace(f"{_BASE}.", ".")
        if scaling is not None and set(adapters) <= known:
            made.append(Recipe((name, *adapters), _merged(plain, scaling, mixture)))
        else:
            made.append(Recipe((name,), _as_is(plain, mixture)))
    return made


def make_all(layout: Iterable[Recipe], tensors: dict[str, torch.Tensor]) -> Iterator[Named]:
    """Everything that the recipes make of these parameters, which are whole already."""
    for recipe in layout:
        yield from recipe.make([tensors[name] for name in recipe.sources])


def _as_is(name: str, mixture: Mixture | None) -> Callable[[Sequence[torch.Tensor]], Iterable[Named]]:
    return lambda tensors: _named(name, tensors[0], mixture)


def _merged(name: str, scaling: float, mixture: Mixture | None) -> Callable[[Sequence[torch.Tensor]], Iterable[Named]]:
    def make(tensors: Sequence[torch.Tensor]) -> Iterable[Named]:
        base, down, up = tensors
        # a product in bf16, rounded again when it is added, would lose small steps; one in fp32 differs from device to
        # device by its order of summation, and with it the fingerprint of a checkpoint
        weight = torch.addmm(base.double(), up.double(), down.double(), alpha=scaling)
        return _named(name, weight.float(), mixture)

    return make


def _named(name: str, tensor: torch.Tensor, mixture: Mixture | None) -> Iterable[Named]:
    return [(name, tensor)] if mixture is None else mixture.unfused(name, tensor)
