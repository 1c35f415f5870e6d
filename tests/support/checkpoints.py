"""Checkpoints without a learner: real files, with tensors of no model."""

from pathlib import Path
from typing import Any

import torch

from trainer.learner.checkpoint import Checkpoint, Probe, write


def make_checkpoint(root: Path, step: int, **changes: Any) -> Checkpoint:
    """What is known of a checkpoint before it is written."""
    fields: dict[str, Any] = {
        "path": root / f"global_step_{step}",
        "step": step,
        "ranks": 1,
        "fingerprint": f"f{step}",
        "model_path": "/models/tiny",
        "dtype": "float32",
        "probe": Probe([1, 2, 3], [-0.5, -1.5]),
    }
    return Checkpoint(**fields | changes)


def make_shards(step: int, numel: int = 5000) -> dict[str, Any]:
    """Shards of a policy and a critic, whose values tell the step."""
    return {
        "model_states.pt": {"updates": step},
        "optim_states.pt": {"weights": torch.full((numel,), float(step))},
        "critic/optim_states.pt": {"weights": torch.full((numel,), -float(step))},
    }


def write_checkpoint(root: Path, step: int, **changes: Any) -> Checkpoint:
    """A complete checkpoint."""
    return Checkpoint.open(write(make_shards(step), make_checkpoint(root, step, **changes)))


def holds(checkpoint: Checkpoint, step: int) -> bool:
    """Whether it is whole, and what was written at `step`."""
    checkpoint.require_whole()
    shards = [torch.load(checkpoint.path / name, weights_only=True)["weights"] for name in ("optim_states.pt",)]
    return all(bool((shard == step).all()) for shard in shards)
