"""A sync of LoRA adapters alone: small enough to travel whole, and replaced in an engine whose base stays as it is.

The engine keeps one adapter under one number, so that requests that are running go on under the new one, as they do
after a sync of whole weights.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.serving.buckets import TensorRecord, WeightSyncError, digest, manifest
from trainer.serving.sender import confirm

NUMBER = 1
"""vLLM's number of the only adapter."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Widths that vLLM makes room for."""

_PREFIX = "base_model.model."
_WEIGHTS, _SETTINGS = "adapter_model.safetensors", "adapter_config.json"


def room_for(rank: int) -> int:
    """The width that an engine is started with for adapters of this rank."""
    return next(width for width in RANKS if width >= rank)


def send_adapters(
    tensors: Iterable[tuple[str, torch.Tensor]], actors: Sequence[Any], version: int, scaling: float
) -> str:
    """Send adapters, under peft's names, as weight `version`. Returns the fingerprint that every replica confirmed.

    Raises:
        WeightSyncError: a replica holds other adapters than were sent.
        Exception: what a replica raised; it serves nothing until a later sync succeeds.
    """
    import ray
    from safetensors.torch import save

    kept = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in tensors}
    sent = manifest(TensorRecord.of(name, tensor) for name, tensor in kept.items())
    data = ray.put(save(kept))
    confirmed = ray.get([actor.load_adapters.remote(version, data, scaling) for actor in actors])
    return confirm(version, sent, confirmed)


def write_adapters(folder: Path, data: bytes, scaling: float) -> None:
    """What was sent, as the folder that peft and vLLM read adapters from."""
    from safetensors.torch import load

    tensors = load(data)
    (rank,) = {tensor.shape[0] for name, tensor in tensors.items() if ".lora_A." in name}
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": scaling * rank,
        "target_modules": sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors}),
        "bias": "none",
    }
    folder.mkdir(parents=True)
    (folder / _WEIGHTS).write_bytes(data)
    (folder / _SETTINGS).write_text(json.dumps(settings))


def verified_adapters(manager: Any, folder: Path, whole: bool) -> str:
    """Fingerprint of the adapters in `folder`, which are those that an engine computes with.

    Args:
        manager: vLLM's `LoRAModelManager`.
        whole: this worker holds all of each adapter; a slice of one is compared by name alone.

    Raises:
        WeightSyncError: the engine computes with another adapter, or has no layer for one that was sent.
    """
    from safetensors.torch import load_file

    tensors = load_file(folder / _WEIGHTS)
    settings = json.loads((folder / _SETTINGS).read_text())
    scaling = settings["lora_alpha"] / settings["r"]
    unseen = set(tensors)
    slot = manager.lora_index_to_id.index(NUMBER)
    for module, layer in manager.modules.items():
        if not isinstance(getattr(layer, "lora_a_stacked", None), tuple):
            continue  # embeddings, output heads and fused experts never get one from us
        for i, part in enumerate(_parts(module, manager.packed_modules)):
            held = {"A": layer.lora_a_stacked[i][slot, 0], "B": layer.lora_b_stacked[i][slot, 0]}
            for kind, have in held.items():
                name = f"{_PREFIX}{part}.lora_{kind}.weight"
                unseen.discard(name)
                if whole and not _holds(have, tensors.get(name), scaling if kind == "B" else 1.0):
                    raise WeightSyncError(f"the engine computes with another {name} than was sent")
    if unseen:
        raise WeightSyncError(f"adapters were sent for layers that the engine has none for: {sorted(unseen)[:5]}")
    return digest(manifest(TensorRecord.of(name, tensor) for name, tensor in tensors.items()))


def _parts(module: str, packed: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The layers of a checkpoint that an engine's layer is made of."""
    return packed.get(module) or (module,)


def _holds(have: torch.Tensor, sent: torch.Tensor | None, scaling: float) -> bool:
    """Whether a slot holds the adapter that was sent, scaled as vLLM does, and nothing else; zeros if none was."""
    if sent is None:
        return not have.any()
    want = torch.zeros_like(have)
    want[: sent.shape[0], : sent.shape[1]] = sent.to(have.device, have.dtype) * scaling
    return torch.equal(have, want)
