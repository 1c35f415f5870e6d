"""Which checkpoint tensors an engine computes with, and whether it computes with the ones it was sent.

vLLM fuses tensors (q, k, v into one), and on CPU repacks them out of sight; a tensor that a sync leaves out keeps its
old value there and nothing complains. Names are therefore compared with the engine's own full list, tied ones included,
and columns of every matrix are read back through the very kernel that serves requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from trainer.serving.experts import expert_columns, expert_sources, expert_width, is_fused_experts

PROBED_COLUMNS = 8

_WIDTHS = ("input_size_per_partition", "input_size", "embedding_dim")
"""Where a layer says how long its inputs are: one that is split over devices, a router, an output head."""


@dataclass(frozen=True)
class Fused:
    """One parameter of the engine and the checkpoint tensors that it is made of, stacked along dimension 0."""

    module_name: str
    module: nn.Module
    parameter: str
    sources: tuple[str, ...]


def engine_parameters(model: nn.Module) -> Iterator[Fused]:
    """Every parameter the engine's model holds, with the checkpoint names it comes from.

    Raises:
        TypeError: a layer whose experts are laid out in a way that this mapping does not know.
    """
    packed: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    for module_name, module in model.named_modules():
        for parameter in module._parameters:
            if module._parameters[parameter] is None:
                continue
            if is_fused_experts(module):
                yield Fused(module_name, module, parameter, expert_sources(module_name, module, parameter))
                continue
            parent, _, leaf = module_name.rpartition(".")
            leaves = packed.get(leaf, (leaf,))
            prefix = f"{parent}." if parent else ""
            yield Fused(module_name, module, parameter, tuple(f"{prefix}{name}.{parameter}" for name in leaves))


def expected_names(model: nn.Module) -> set[str]:
    """Checkpoint names that a full sync must bring, ties included."""
    return {name for fused in engine_parameters(model) for name in fused.sources}


def probe(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """The part of a checkpoint tensor that is read back after loading: whole vectors, some columns of matrices."""
    if tensor.dim() != 2:
        return tensor.clone()
    return _taken(tensor, _columns(tensor.shape[1], seed)).clone()


@torch.no_grad()
def stale_parameters(model: nn.Module, probes: Mapping[str, torch.Tensor], seed: int) -> list[str]:
    """Names of parameters with which the engine does not compute what `probes` say it was sent.

    Matrices are asked for columns by one-hot inputs through their own kernel, which is exact: a product with 1 plus
    zeros. `probes` maps checkpoint names to `probe(tensor, seed)`.
    """
    stale = []
    for fused in engine_parameters(model):
        want = torch.cat([probes[name] for name in fused.sources])
        have = _computed(fused, want, seed)
        if have.shape != want.shape or not torch.equal(have, want.to(have.dtype)):
            stale.append(f"{fused.module_name}.{fused.parameter}")
    return stale


def is_lookup(module: nn.Module) -> bool:
    """Whether a module looks rows up, rather than multiply by them."""
    return "Embedding" in type(module).__name__


def _computed(fused: Fused, want: torch.Tensor, seed: int) -> torch.Tensor:
    module, rows = fused.module, want.shape[0]
    if is_fused_experts(module):
        columns = _columns(expert_width(module, fused.parameter), seed)
        return expert_columns(module, fused.parameter, columns)
    weight = getattr(module, fused.parameter)
    apply = getattr(getattr(module, "quant_method", None), "apply", None)
    if want.dim() == 2 and apply is not None and not is_lookup(module):
        width: int = next(getattr(module, name) for name in _WIDTHS if hasattr(module, name))
        columns = _columns(width, seed)
        # a router may be kept in another type than the rest
        inputs = torch.zeros(len(columns), width, dtype=weight.dtype, device=want.device)
        inputs[torch.arange(len(columns)), columns] = 1
        # without the bias, which is a parameter of its own
        return apply(module, inputs, bias=None).T[:rows]
    if want.dim() == 2:
        return _taken(weight[:rows], _columns(weight.shape[1], seed))
    return weight[:rows] if want.dim() else weight


def _taken(matrix: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    first, last = int(columns[0]), int(columns[-1])
    # a slice is five times as fast as a choice, which is needed where columns begin again on the left
    return matrix[:, first : last + 1] if last - first + 1 == len(columns) else matrix[:, columns]


def _columns(width: int, seed: int) -> torch.Tensor:
    # neighbours, since reading a column takes its cache lines along
    start = torch.randint(width, (1,), generator=torch.Generator().manual_seed(seed))
    return ((start + torch.arange(min(PROBED_COLUMNS, width))) % width).sort().values
