"""What DeepSpeed would write of a model and its optimizer, taken before it writes: we write it ourselves.

DeepSpeed writes shards in place, each rank on its own, and waits for the others afterwards: a rank whose disk is full
raises while its peers wait for it until the collective times out. What is taken here is written by `checkpoint.save`,
which lets all ranks know.
"""

from pathlib import Path
from typing import Any

from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine


class _Taker(CheckpointEngine):
    """Stands where DeepSpeed's writer does, and keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[str, Any] = {}

    def create(self, info: CheckpointCommitInfo) -> None:
        pass

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def save(self, state_dict: Any, path: str) -> None:
        self.taken[Path(path).name] = state_dict

    def load(self, path: str, map_location: Any = None) -> Any:
        raise NotImplementedError("what was taken is written by us, and read by DeepSpeed's own engine")

    def commit(self, info: CheckpointCommitInfo) -> bool:
        return True


def take(engine: Any) -> dict[str, Any]:
    """This rank's shards by file name. A collective; nothing is written.

    The values refer to live memory: write them before the next update.
    """
    taker, writer = _Taker(), engine.checkpoint_engine
    engine.checkpoint_engine = taker
    # rank 0 would copy a script beside the shards, on whose failure the other ranks wait
    engine._copy_recovery_script = lambda folder: None
    try:
        engine.save_checkpoint("none", tag="none", save_latest=False)
    finally:
        engine.checkpoint_engine = writer
        del engine._copy_recovery_script
    return taker.taken
