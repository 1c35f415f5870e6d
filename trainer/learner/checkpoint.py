"""Checkpoints that are complete or absent: shards under a temporary name, a marker last, then one rename.

A checkpoint is a folder `global_step_<N>`: the shards of the policy as DeepSpeed lays them out, those of other models
in folders of their names, `rank_<R>.pt` with what else each rank needs to go on, and the marker. Folders on their way
in or out have names that begin with a dot; a process that died leaves them, and the next save or start removes them.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.learner.ranks import on_all_ranks, on_first_rank, rank_and_world
from trainer.learner.rng import branch_rng, restore_rng, rng_state

MARKER = "complete.json"
POLICY = "policy"
"""The model whose shards lie in the checkpoint's own folder; those of others lie in a folder of their name."""

_NAME = re.compile(r"global_step_(\d+)")
_GARBAGE = re.compile(r"\.global_step_\d+\.(partial|removed|resharded)")


class CheckpointError(ValueError):
    """No usable checkpoint where one was expected, or one that cannot be written."""


@dataclass(frozen=True)
class Probe:
    """What the learner itself said of a few tokens: whoever has the same weights says the same."""

    token_ids: list[int]
    logprobs: list[float]
    """Of all tokens but the first, at temperature 1."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: the weights after update `step`, which is their weight version too."""

    path: Path
    step: int
    ranks: int
    fingerprint: str
    model_path: str
    """The model that the run began with: config and tokenizer come from there."""
    dtype: str
    """Precision of the weights that the fingerprint and the probe are of."""
    probe: Probe
    scaling: float | None = None
    """How often its adapters count; None where it has none."""
    adapters: str | None = None
    """Fingerprint of the adapters by themselves: in the merged weights, rounding may hide a change of theirs."""
    notes: dict[str, str] = field(default_factory=dict)
    """What the run wants to find again."""
    files: dict[str, int] = field(default_factory=dict)
    """Bytes of each file but the marker, by its path in the folder."""

    @classmethod
    def open(cls, path: Path) -> "Checkpoint":
        """Raises CheckpointError unless `path` is a complete checkpoint."""
        marker = path / MARKER
        if not marker.is_file():
            raise CheckpointError(f"{path} has no {MARKER}: it is not a checkpoint, or was never finished")
        try:
            fields = json.loads(marker.read_text())
            return cls(path=path, **fields | {"probe": Probe(**fields["probe"])})
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{marker} cannot be read ({error}): damaged, or written by another version of testgrad; "
                "remove the folder, the run goes on from its journal"
            ) from error

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    def require_whole(self) -> None:
        """Raises CheckpointError if a file is missing or has another size than it was written with."""
        for name, size in self.files.items():
            path = self.path / name
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                what = "is missing" if found is None else f"has {found:,} bytes, but was written with {size:,}"
                raise CheckpointError(f"{path} {what}: the checkpoint is damaged; remove {self.path}")


def list_checkpoints(root: Path) -> list[Checkpoint]:
    """Complete checkpoints under `root`, oldest first. Unfinished ones are left out."""
    if not root.is_dir():
        return []
    folders = [folder for folder in root.iterdir() if _NAME.fullmatch(folder.name) and (folder / MARKER).is_file()]
    return sorted((Checkpoint.open(folder) for folder in folders), key=lambda checkpoint: checkpoint.step)


def save(engines: Mapping[str, Any], checkpoint: Checkpoint) -> Path:
    """Write the models at `checkpoint.path`, with the random generators of each rank. Returns that path.

    `ranks` and `files` of `checkpoint` are filled in. A collective; an existing checkpoint is left alone.

    Raises:
        CheckpointError: on all ranks, if one cannot write. What was written is removed, older checkpoints stay.
    """
    from trainer.learner.snapshot import take

    rank, _ = rank_and_world()
    shards: dict[str, Any] = {f"rank_{rank}.pt": {"rng": rng_state()}}
    for name, engine in engines.items():
        folder = "" if name == POLICY else f"{name}/"
        shards |= {folder + file: state for file, state in take(engine).items()}
    return write(shards, checkpoint)


def write(shards: Mapping[str, Any], checkpoint: Checkpoint) -> Path:
    """The part of `save` that comes after the shards are known."""
    rank, world = rank_and_world()
    root, scratch = checkpoint.path.parent, _hidden(checkpoint.path, "partial")
    if any(on_all_ranks((checkpoint.path / MARKER).is_file, CheckpointError)):
        return checkpoint.path
    try:
        on_first_rank(lambda: _make_room(root, checkpoint.path, scratch), CheckpointError)
        written = on_all_ranks(lambda: _write_files(scratch, shards), CheckpointError)
        files = {name: size for part in written for name, size in part.items()}
        complete = replace(checkpoint, ranks=world, files=files)
        on_first_rank(lambda: _publish(scratch, complete), CheckpointError)
    except CheckpointError as error:
        if rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
        raise CheckpointError(
            f"checkpoint of step {checkpoint.step} cannot be written: {error}; "
            f"{_free(root)} are free in {root}: make room, or lower schedule.keep_checkpoints. "
            "The checkpoints before it are as they were"
        ) from error
    return checkpoint.path


def load(engines: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Restore weights, optimizer, schedule and random generators. A collective.

    One that another number of ranks wrote is laid out anew first. Its random generators then go on for the ranks that
    there were; further ranks branch off from the first.

    Raises:
        CheckpointError: it is damaged, or DeepSpeed found nothing in it.
    """
    from trainer.learner import reshard

    rank, world = rank_and_world()
    on_first_rank(checkpoint.require_whole, CheckpointError)
    for name, engine in engines.items():
        folder = checkpoint.path if name == POLICY else checkpoint.path / name
        shared_out = any(folder.glob("*_optim_states.pt"))  # not under stage 0, where each rank has everything
        if checkpoint.ranks == world or not shared_out:
            loaded, _ = engine.load_checkpoint(str(folder.parent), tag=folder.name)
            if loaded is None:
                raise CheckpointError(f"DeepSpeed found nothing to load for the {name} in {folder}")
        else:
            reshard.load(engine, folder, _hidden(checkpoint.path, "resharded"))
    import torch

    known = rank < checkpoint.ranks
    state = torch.load(checkpoint.path / f"rank_{rank if known else 0}.pt", weights_only=True)["rng"]
    if known:
        restore_rng(state)
    else:
        branch_rng(state, rank)


def remove(path: Path) -> None:
    """Delete a checkpoint. One that is half deleted, because the process died, does not count as one any more."""
    doomed = _hidden(path, "removed")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    _fsync(path.parent)
    shutil.rmtree(doomed)


def remove_garbage(root: Path) -> list[str]:
    """Delete what processes that died left among the checkpoints. Returns the names of what it was.

    Nobody else may be saving there.
    """
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    found = [name for name in names if _GARBAGE.fullmatch(name)]
    for name in found:
        shutil.rmtree(root / name)
    return found


def _make_room(root: Path, target: Path, scratch: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    remove_garbage(root)
    if target.exists():
        # no marker: its owner took it away, for nothing of ours comes to be under this name without one
        remove(target)
    scratch.mkdir()


def _write_files(folder: Path, states: Mapping[str, Any]) -> dict[str, int]:
    """Write and sync this rank's files. Returns the bytes of each."""
    return {name: _write_file(folder / name, state) for name, state in states.items()}


def _write_file(path: Path, state: Any) -> int:
    import torch

    path.parent.mkdir(exist_ok=True)
    try:
        with open(path, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()
    except (OSError, RuntimeError) as error:
        # torch finds that its archive is broken, and hides why the write failed
        raise CheckpointError(f"{path.name}: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen.strerror or str(seen)
        seen = seen.__cause__ or seen.__context__
    return str(error)


def _publish(scratch: Path, checkpoint: Checkpoint) -> None:
    replace(checkpoint, path=scratch).require_whole()  # on a file system that the ranks do not share it is not
    fields = {key: value for key, value in asdict(checkpoint).items() if key != "path"}
    with open(scratch / MARKER, "w", encoding="utf-8") as file:
        file.write(json.dumps(fields, indent=1))
        file.flush()
        os.fsync(file.fileno())
    for folder in {scratch / Path(name).parent for name in checkpoint.files}:
        _fsync(folder)
    os.rename(scratch, checkpoint.path)
    _fsync(checkpoint.path.parent)


def _hidden(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{what}")


def _free(root: Path) -> str:
    place = next(folder for folder in (root, *root.parents) if folder.exists())
    return f"{shutil.disk_usage(place).free / 2**20:,.0f} MiB"


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
