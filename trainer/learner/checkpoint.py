"""Checkpoints that are complete or absent: shards under a temporary name, a marker last, then one rename."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MARKER = "complete.json"
_NAME = re.compile(r"global_step_(\d+)")


class CheckpointError(ValueError):
    """No usable checkpoint where one was expected."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    step: int
    ranks: int
    fingerprint: str
    model_path: str

    @classmethod
    def open(cls, path: Path) -> "Checkpoint":
        """Raises CheckpointError unless `path` is a complete checkpoint."""
        marker = path / MARKER
        if not marker.is_file():
            raise CheckpointError(f"{path} has no {MARKER}: it is not a checkpoint, or was never finished")
        return cls(path=path, **json.loads(marker.read_text()))


def list_checkpoints(root: Path) -> list[Checkpoint]:
    """Complete checkpoints under `root`, oldest first. Unfinished ones are left out."""
    if not root.is_dir():
        return []
    folders = [folder for folder in root.iterdir() if _NAME.fullmatch(folder.name) and (folder / MARKER).is_file()]
    return sorted((Checkpoint.open(folder) for folder in folders), key=lambda checkpoint: checkpoint.step)


POLICY = "policy"
"""The model whose shards lie in the checkpoint's own folder; those of others lie in a folder of their name."""


def save(
    engines: Mapping[str, Any], root: Path, step: int, fingerprint: str, model_path: str, client_state: dict[str, Any]
) -> Path:
    """Write `root/global_step_<step>`: the engine `policy`, and others under their names.

    A collective; an existing checkpoint of that step is left alone.
    """
    import torch.distributed as dist

    target = root / f"global_step_{step}"
    if (target / MARKER).is_file():
        return target
    scratch = root / f".{target.name}.partial"
    leads = dist.get_rank() == 0
    if leads:
        shutil.rmtree(scratch, ignore_errors=True)
        root.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    # each ends in a barrier of its own: every shard is written when it returns
    for name, engine in engines.items():
        folder = scratch if name == POLICY else scratch / name
        engine.save_checkpoint(str(folder.parent), tag=folder.name, client_state=client_state, save_latest=False)
    if leads:
        marker = Checkpoint(scratch, step, dist.get_world_size(), fingerprint, model_path)
        fields = {key: value for key, value in asdict(marker).items() if key != "path"}
        (scratch / MARKER).write_text(json.dumps(fields, indent=2))
        _fsync_tree(scratch)
        os.rename(scratch, target)
        _fsync(root)
    dist.barrier()
    return target


def load(engines: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """Restore weights, optimizer and schedule. A collective. Returns the client state that was saved.

    Raises:
        CheckpointError: it was written by another number of ranks, or DeepSpeed found nothing in it.
    """
    import torch.distributed as dist

    if checkpoint.ranks != dist.get_world_size():
        raise CheckpointError(
            f"{checkpoint.path} was written by {checkpoint.ranks} ranks, this learner has {dist.get_world_size()}; "
            f"set learner.ranks: {checkpoint.ranks}"
        )
    state: dict[str, Any] = {}
    for name, engine in engines.items():
        folder = checkpoint.path if name == POLICY else checkpoint.path / name
        loaded, client_state = engine.load_checkpoint(str(folder.parent), tag=folder.name)
        if loaded is None:
            raise CheckpointError(f"DeepSpeed found nothing to load for the {name} in {folder}")
        state |= client_state
    return state


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` complete checkpoints."""
    for checkpoint in list_checkpoints(root)[:-keep] if keep else []:
        shutil.rmtree(checkpoint.path)


def _fsync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            _fsync(path)
    _fsync(folder)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
