"""Where the tensors of a sync belong in a CPU engine's parameters, so that they can be put there directly.

vLLM's way to load weights anew takes every layer apart and makes it again. What comes of it is known once it was done:
tensors lie in the engine's parameters one below the other, or are packed out of sight for oneDNN. From then on they are
copied to where they lie, and packed by vLLM's own functions, straight out of the learner's buffer where they lie there
as the kernel wants them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention, is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.platforms import current_platform

from trainer.serving.buckets import TensorRecord, WeightSyncError, type_name, type_of
from trainer.serving.checksum import checksum
from trainer.serving.names import Fused, engine_parameters, is_lookup


@dataclass
class _Place:
    """A parameter of the engine, and what has come of it: tensors by name, until all are there to be packed."""

    fused: Fused
    records: Mapping[str, TensorRecord]
    """What was loaded there: the next will have the same types and shapes."""
    starts: Mapping[str, int]
    """The first row of each tensor."""
    is_packed: bool
    """The kernel has the only copy: the parameter is empty."""
    waiting: dict[str, torch.Tensor] = field(default_factory=dict)


class Landings:
    """The places of all tensors of a model."""

    def __init__(self, places: Mapping[str, _Place]) -> None:
        self._places = places

    @classmethod
    def learn(cls, model: nn.Module, config: VllmConfig, arrived: Sequence[TensorRecord]) -> "Landings | None":
        """The places of tensors that vLLM has just loaded, and that were verified; None if one cannot be proven."""
        if not _is_plain(model, config):
            return None
        records = {record.name: record for record in arrived}
        places: dict[str, _Place] = {}
        for fused in engine_parameters(model):
            place = _place(fused, [records[name] for name in fused.sources])
            if place is None:
                return None
            places |= dict.fromkeys(fused.sources, place)
        if any(isinstance(module, ParallelLMHead) for module in model.modules()):
            _unpack_lookups(model)
        return cls(places)

    @torch.no_grad()
    def land(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Put tensors where they belong. They may be taken back afterwards.

        Raises:
            WeightSyncError: one has no place or does not fit there, or the engine kept hold of one.
        """
        copied: set[tuple[int, int]] = set()
        for name, tensor in tensors:
            place = self._places.get(name)
            if place is None:
                raise WeightSyncError(f"{name} was sent, but the engine has no place for it")
            before = place.records[name]
            if tuple(tensor.shape) != before.shape or tensor.dtype != type_of(before.dtype):
                raise WeightSyncError(
                    f"{name} was sent as {type_name(tensor.dtype)} {list(tensor.shape)}, but once as {before.dtype} "
                    f"{list(before.shape)}"
                )
            if place.is_packed:
                _pack_when_complete(place, name, tensor)
            else:
                _copy(place, name, tensor, copied)
        for name, _ in tensors:
            waiting = self._places[name].waiting
            if name in waiting:
                waiting[name] = waiting[name].clone()


def _is_plain(model: nn.Module, config: VllmConfig) -> bool:
    """Whether nothing is known of a model that makes other things of its weights than the layers below do."""
    holding = [module for _, module in model.named_modules(remove_duplicate=False) if list(module.parameters(False))]
    return (
        current_platform.is_cpu()
        # its kernel may keep hold of a weight instead of a packed copy
        and not current_platform.is_zen_cpu()
        and config.parallel_config.tensor_parallel_size == 1
        and config.lora_config is None
        # a module under two names may be a lookup and a head at once
        and len(holding) == len(set(holding))
        # others absorb weights of their neighbours
        and all(type(module) is Attention for module in model.modules() if is_deferred_attention_layer(module))
    )


def _place(fused: Fused, records: Sequence[TensorRecord]) -> _Place | None:
    """Where tensors that were loaded lie; None if they are not what lies there."""
    method = getattr(fused.module, "quant_method", None)
    if method is not None and type(method) not in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        return None
    parameter = getattr(fused.module, fused.parameter)
    by_name, starts, row = {record.name: record for record in records}, {}, 0
    for record in records:
        if not record.shape:
            return None
        starts[record.name] = row
        row += record.shape[0]
    if parameter.numel():
        for record in records:
            lies = parameter[starts[record.name] :][: record.shape[0]]
            if tuple(lies.shape) != record.shape or checksum(lies.to(type_of(record.dtype))) != record.checksum:
                return None
        return _Place(fused, by_name, starts, is_packed=False)
    # its values are read back after every sync; here it is known by what vLLM packs
    whole = get_layerwise_info(fused.module).restore_metadata[0].get(fused.parameter)
    if type(method) is not UnquantizedLinearMethod or fused.parameter != "weight" or whole is None:
        return None
    if tuple(whole.shape) != (row, *records[0].shape[1:]) or len({record.shape[1:] for record in records}) > 1:
        return None
    if any(type_of(record.dtype) != whole.dtype for record in records):
        return None
    return _Place(fused, by_name, starts, is_packed=True)


def _unpack_lookups(model: nn.Module) -> None:
    """vLLM packs embeddings too, as if they were heads. Where there is a head, nobody asks for that copy."""
    module: Any
    for module in model.modules():
        if is_lookup(module) and hasattr(module, "cpu_linear"):
            # the form in which vLLM keeps weights that it cannot pack: it computes with the parameter as it is
            module.cpu_linear = torch.nn.functional.linear


def _copy(place: _Place, name: str, tensor: torch.Tensor, copied: set[tuple[int, int]]) -> None:
    """Into the parameter, and from there to the packed copy if there is one. `copied`: what went where so far."""
    module: Any = place.fused.module
    into = getattr(module, place.fused.parameter).data[place.starts[name] :][: len(tensor)]
    # of tied ones the second is there already
    way = (tensor.data_ptr(), into.data_ptr())
    if way not in copied:
        into.copy_(tensor)
        copied.add(way)
    if tensor.dim() == 2 and hasattr(module, "cpu_linear") and module.cpu_linear is not torch.nn.functional.linear:
        module.quant_method.process_weights_after_loading(module)


def _pack_when_complete(place: _Place, name: str, tensor: torch.Tensor) -> None:
    place.waiting[name] = tensor
    if len(place.waiting) < len(place.starts):
        return
    module: Any = place.fused.module
    emptied = module.weight
    whole = _below_each_other([place.waiting[source] for source in place.fused.sources])
    place.waiting.clear()
    module.weight = nn.Parameter(whole, requires_grad=False)
    module.quant_method.process_weights_after_loading(module)
    if module.weight.numel():
        raise WeightSyncError(f"the engine kept hold of {name}, which it was to pack")
    module.weight = emptied


def _below_each_other(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Matrices as one: without a copy if they lie one behind the other already."""
    first, end = parts[0], parts[0].data_ptr()
    for part in parts:
        if part.data_ptr() != end or part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return torch.cat(list(parts))
        end += part.nbytes
    return first.as_strided((sum(len(part) for part in parts), first.shape[1]), first.stride())
