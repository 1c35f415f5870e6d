"""python -m support.saved_learner FOLDER: a learner in this process, whose saves are killed at every stage.

A mixture of experts with adapters, dropout and a critic, in fp32. Prints a JSON object of what was found.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from support.killed import kill_at_every_stage
from support.mixture import tiny_mixture
from support.rollouts import write_batch

from trainer.algorithms.config import AlgorithmConfig
from trainer.batch import sampled, sampled_lengths, with_advantages
from trainer.learner import checkpoint as checkpoints
from trainer.learner.checkpoint import list_checkpoints, remove, remove_garbage
from trainer.learner.config import CriticConfig, LearnerConfig
from trainer.learner.lora.config import LoraConfig
from trainer.learner.rank import LearnerRank


def main(folder: Path) -> dict[str, Any]:
    model, root = tiny_mixture(folder / "model"), folder / "checkpoints"
    batch = with_returns(write_batch(folder / "batch.parquet"))
    rank = boot(model)
    rank.update(1, str(batch), 1.0)
    rank.save(str(root), 1, {})
    pristine = folder / "pristine"
    shutil.copytree(root, pristine)
    rank.update(2, str(batch), 1.0)
    write = captured(lambda: rank.save(str(root), 2, {"note": "kept"}))
    straight = rank.update(3, str(batch), 1.0)

    def save_and_retain() -> None:
        write()
        remove(root / "global_step_1")

    stages: list[str] = []
    loaded: list[int] = []
    for stage in kill_at_every_stage(save_and_retain, root, sizes=(100, 5000)):
        newest = list_checkpoints(root)[-1]
        # raises unless the weights are those that were saved
        loaded.append(rank.load(str(newest.path)))
        remove_garbage(root)
        left = {path.name for path in root.iterdir()}
        assert left == {checkpoint.path.name for checkpoint in list_checkpoints(root)}, (stage, left)
        stages.append(stage)
        shutil.rmtree(root)
        shutil.copytree(pristine, root)
    write()
    assert rank.load(str(root / "global_step_2")) == 2
    again = rank.update(3, str(batch), 1.0)
    assert again.fingerprint == straight.fingerprint, (
        "a resumed update draws the same dropout, and gives the same weights"
    )
    assert rank.load(str(root / "global_step_2")) == 2
    torch.rand(1)
    other = rank.update(3, str(batch), 1.0)
    assert other.fingerprint != straight.fingerprint, "dropout draws nothing: the test is blind"
    return {"stages": stages, "loaded": loaded}


def with_returns(path: Path) -> Path:
    """The batch with what a critic learns from."""
    table = pq.read_table(path)
    tokens = int(sampled_lengths(table).sum())
    columns = {"values": np.zeros(tokens), "returns": np.ones(tokens)}
    pq.write_table(with_advantages(table, sampled(table, "advantages"), **columns), path)
    return path


def boot(model: Path) -> LearnerRank:
    """The only rank of a learner, in this process."""
    config = LearnerConfig(
        dtype="float32",
        lr=1e-2,
        critic=CriticConfig(lr=1e-3),
        lora=LoraConfig(rank=4, alpha=8.0, dropout=0.2),
        threads=1,
    )
    rank = LearnerRank(0, config, AlgorithmConfig(adv_estimator="gae"))
    rank.meet(*rank.open_store("127.0.0.1"))
    rank.boot(str(model))
    torch.set_num_threads(1)  # children of a fork have no other thread
    return rank


def captured(save: Callable[[], object]) -> Callable[[], object]:
    """The writing that `save` would do, which can then be done in a child and again: without a collective."""
    found: list[Any] = []
    real = checkpoints.write
    checkpoints.write = lambda shards, checkpoint: found.extend((shards, checkpoint)) or checkpoint.path
    try:
        save()
    finally:
        checkpoints.write = real
    shards = {name: torch_copy(state) for name, state in found[0].items()}
    return lambda: real(shards, found[1])


def torch_copy(state: Any) -> Any:
    """Shards refer to live memory, which later updates change."""
    import io

    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
