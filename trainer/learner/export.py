"""From ZeRO-3 shards to a Hugging Face folder that any server loads, checked against the base model."""

import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from trainer.learner.checkpoint import Checkpoint, CheckpointError


class ExportError(ValueError):
    """The exported weights are not a model of the base's shape."""


def export_checkpoint(path: Path, target: Path) -> Path:
    """Write the weights of a checkpoint to `target`, with the base's config and tokenizer.

    Raises:
        CheckpointError: `path` is no complete checkpoint, or its base model is gone.
        ExportError: keys or shapes differ from the base's, or `target` exists.
    """
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = Checkpoint.open(path)
    base = Path(checkpoint.model_path)
    if not (base / "config.json").is_file():
        raise CheckpointError(
            f"{path}: its base model {base} is gone; put it back, the export takes config and tokenizer from it"
        )
    if target.exists():
        raise ExportError(f"{target} exists; choose another folder, or remove it")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    model = AutoModelForCausalLM.from_pretrained(base)
    weights = get_fp32_state_dict_from_zero_checkpoint(str(path.parent), tag=path.name)
    dtype = model.dtype
    verify(model.state_dict(), weights, _tied(model))
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in weights.items()}, strict=False)
    model.tie_weights()
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        model.save_pretrained(scratch)
        AutoTokenizer.from_pretrained(base).save_pretrained(scratch)
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def verify(base: dict[str, torch.Tensor], weights: dict[str, torch.Tensor], tied: set[str]) -> None:
    """Raises ExportError unless `weights` has the base's keys (tied ones may be absent) and shapes, all finite."""
    missing = sorted(base.keys() - weights.keys() - tied)
    unexpected = sorted(weights.keys() - base.keys())
    if missing or unexpected:
        raise ExportError(f"keys differ from the base model's: missing {missing[:5]}, unexpected {unexpected[:5]}")
    for name, tensor in weights.items():
        if tensor.shape != base[name].shape:
            raise ExportError(f"{name} has shape {tuple(tensor.shape)}, in the base model {tuple(base[name].shape)}")
        if not torch.isfinite(tensor).all():
            raise ExportError(f"{name} holds values that are not finite; the run diverged before this checkpoint")


def _tied(model: Any) -> set[str]:
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return {"lm_head.weight"} if embedding is head else set()
