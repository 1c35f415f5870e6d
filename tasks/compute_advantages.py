"""Stage 5 of a step: from rewards to advantages, group by group."""

import numpy as np
import pyarrow.parquet as pq
from prefect import task

from tasks.journal import write_table
from tasks.policy import staged
from tasks.run import RunRef
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS
from trainer.batch import BATCH_SCHEMA, with_advantages
from trainer.metrics import distribution


@task(**staged("compute_advantages", timeout=600))
async def compute_advantages(run: RunRef, label: str, algorithm: AlgorithmConfig) -> dict[str, float]:
    """Add the advantage column to batch.parquet. Returns metrics."""
    path = run.journal.stage_dir(label) / "batch.parquet"
    batch = pq.read_table(path).select(BATCH_SCHEMA.names)
    estimator = ADVANTAGE_ESTIMATORS[algorithm.adv_estimator]
    rewards = np.array(batch.column("reward").to_pylist(), dtype=np.float64)
    advantages = estimator(rewards, batch.column("group_id").to_pylist(), norm_by_std=algorithm.norm_adv_by_std)
    write_table(path, with_advantages(batch, advantages.tolist()))
    return distribution("critic/advantages", advantages.tolist())
