"""The batch: the rollouts of a step that reach the optimizer, one row each, as a parquet file."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.rollout import ROLLOUT_SCHEMA, Rollout, RolloutError

BATCH_SCHEMA = ROLLOUT_SCHEMA.append(pa.field("reward", pa.float64()))
TRAIN_SCHEMA = BATCH_SCHEMA.append(pa.field("advantage", pa.float64()))


def make_batch(rollouts: Sequence[Rollout], rewards: Sequence[float]) -> pa.Table:
    """A batch without advantages yet. Rows are ordered by group and session, so that the order of ending is not seen.

    Raises:
        RolloutError: two rows of one session, or counts that differ.
    """
    if len(rollouts) != len(rewards):
        raise RolloutError(f"{len(rollouts)} rollouts, but {len(rewards)} rewards")
    sessions = [rollout.session_id for rollout in rollouts]
    if len(set(sessions)) != len(sessions):
        raise RolloutError("a session appears twice in the batch; each trial gives one rollout")
    rows = sorted(zip(rollouts, rewards, strict=True), key=lambda pair: (pair[0].group_id, pair[0].session_id))
    return pa.Table.from_pylist(
        [rollout.to_row() | {"reward": reward} for rollout, reward in rows], schema=BATCH_SCHEMA
    )


def with_advantages(batch: pa.Table, advantages: Sequence[float]) -> pa.Table:
    """The batch with an advantage for each row."""
    if len(advantages) != batch.num_rows:
        raise RolloutError(f"{batch.num_rows} rollouts, but {len(advantages)} advantages")
    column = pa.array(advantages, type=pa.float64())
    return (
        pa.Table.from_arrays([*batch.columns, column], schema=TRAIN_SCHEMA)
        if batch.num_rows
        else TRAIN_SCHEMA.empty_table()
    )


def read_train_batch(path: Path) -> pa.Table:
    """A batch with advantages, each row checked as a rollout.

    Raises:
        RolloutError: columns are missing, or a row breaks an invariant.
    """
    table = pq.read_table(path)
    missing = set(TRAIN_SCHEMA.names) - set(table.column_names)
    if missing:
        raise RolloutError(f"{path}: columns {sorted(missing)} are missing; has compute_advantages run?")
    for row in table.to_pylist():
        Rollout.from_row(row)
    return table
