"""Weights from a learner to a replica, by CUDA IPC within one GPU and by NCCL between two; sleep and wake between."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.rollouts import write_batch
from support.tiny import tiny_model

from trainer.algorithms.config import AlgorithmConfig
from trainer.colocation import learner_turn, replicas_turn
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup
from trainer.rollout import Sampling
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool

PROMPT = list(range(40, 140))
LEARNER = LearnerConfig(lr=1e-3, dtype="bfloat16", gpus_per_rank=1, attention="sdpa")
TOLERANCE = 0.1
"""Between bfloat16 log-probs of engine and learner; an update of a tiny model at this learning rate moves more."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 6 MB, which comes in a dozen portions of half a bucket."""
    return tiny_model(tmp_path_factory.mktemp("model") / "wide", hidden=256, layers=6)


async def log_probs(pool: ReplicaPool) -> torch.Tensor:
    return torch.tensor(await pool.actors[0].prompt_logprobs.remote(PROMPT))


async def test_learner_and_replica_take_turns_on_one_gpu(cluster: None, model: Path, tmp_path: Path) -> None:
    batch = write_batch(tmp_path / "batch.parquet")
    serving = ServingConfig(window=512, colocated=True, gpu_memory_utilization=0.4, bucket_mib=1)
    learner = await LearnerGroup.start("gpu/turns", model, LEARNER, AlgorithmConfig())
    pool: ReplicaPool | None = None
    try:
        await learner.offload()
        pool = await ReplicaPool.start("gpu/turns", model, serving, 1, None, await learner.devices())
        before = await log_probs(pool)
        moved: list[float] = []
        for version in (1, 2, 3):
            sleeping = await learner_turn(learner, pool)
            freed = sleeping["memory_gib/replicas_awake"] - sleeping["memory_gib/replicas_asleep"]
            assert freed > 1, f"a replica that holds 40 % of a GPU gave back {freed:.2f} GiB"
            record = await learner.update(version, batch, 1.0)

            async def send(version: int = version, record: Any = record) -> None:
                assert pool is not None
                assert await learner.send_weights(version, pool.actors, serving) == record.fingerprint

            waking = await replicas_turn(learner, pool, send)
            assert waking["memory_gib/replicas_awake"] > waking["memory_gib/learner_offloaded"] + 1
            assert await pool.versions() == [version]
            after = await log_probs(pool)
            moved.append(float((after - before).abs().max()))
            before = after
        assert min(moved) > 0, "log-probs follow each update"
        await learner_turn(learner, pool)
        scores = await learner.score(batch, ["old_logprobs"], 1.0, updates=3)
        await replicas_turn(learner, pool)
        assert torch.equal(await log_probs(pool), before), "what slept without a sync wakes up as it was"
        await require_same_distribution(pool, batch, scores["old_logprobs"])
    finally:
        if pool is not None:
            await pool.shutdown()
        learner.shutdown()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs two GPUs: it refuses two ranks on one")
async def test_a_replica_on_another_gpu_is_synced_by_nccl(cluster: None, model: Path, tmp_path: Path) -> None:
    batch = write_batch(tmp_path / "batch.parquet")
    serving = ServingConfig(window=512, bucket_mib=1)
    learner = await LearnerGroup.start("gpu/nccl", model, LEARNER, AlgorithmConfig())
    pool = await ReplicaPool.start("gpu/nccl", model, serving, 1)
    try:
        for version in (1, 2):
            record = await learner.update(version, batch, 1.0)
            assert await learner.send_weights(version, pool.actors, serving) == record.fingerprint
        scores = await learner.score(batch, ["old_logprobs"], 1.0, updates=2)
        await require_same_distribution(pool, batch, scores["old_logprobs"])
        answer = await pool.generate(PROMPT, Sampling(max_tokens=4), "s")
        assert set(answer.weight_versions) == {2}
    finally:
        await pool.shutdown()
        learner.shutdown()


async def require_same_distribution(pool: ReplicaPool, batch: Path, scores: np.ndarray) -> None:
    """The engine's log-probs of a batch's sampled tokens are the learner's."""
    import pyarrow.parquet as pq

    theirs: list[float] = []
    for row in pq.read_table(batch).to_pylist():
        scored = await pool.actors[0].prompt_logprobs.remote(row["token_ids"])
        theirs += scored[row["prompt_length"] - 1 :]
    assert np.abs(np.array(theirs) - scores).max() < TOLERANCE
