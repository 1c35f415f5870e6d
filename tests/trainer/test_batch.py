"""The batch file: the same rows in the same order however trials ended, and checked when it is read."""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.rollouts import make_rollout

from trainer.batch import TRAIN_SCHEMA, make_batch, read_train_batch, with_advantages
from trainer.rollout import RolloutError

ROLLOUTS = [make_rollout(f"s-{i}", group_id=f"g-{i % 2}") for i in range(4)]
REWARDS = [0.0, 1.0, 2.0, 3.0]


def test_order_does_not_depend_on_arrival():
    forward = make_batch(ROLLOUTS, REWARDS)
    backward = make_batch(ROLLOUTS[::-1], REWARDS[::-1])
    assert forward.column("session_id").to_pylist() == ["s-0", "s-2", "s-1", "s-3"]
    for name in ("session_id", "group_id", "reward", "token_ids"):
        assert forward.column(name).equals(backward.column(name))


def test_rewards_stay_with_their_rollouts():
    rows = make_batch(ROLLOUTS[::-1], REWARDS[::-1]).to_pylist()
    assert {row["session_id"]: row["reward"] for row in rows} == dict(
        zip([r.session_id for r in ROLLOUTS], REWARDS, strict=True)
    )


def test_counts_must_agree():
    with pytest.raises(RolloutError, match="4 rollouts, but 3 rewards"):
        make_batch(ROLLOUTS, REWARDS[:3])
    with pytest.raises(RolloutError, match="4 rollouts, but 3 advantages"):
        with_advantages(make_batch(ROLLOUTS, REWARDS), [0.0] * 3)


def test_a_session_appears_once():
    with pytest.raises(RolloutError, match="twice"):
        make_batch([ROLLOUTS[0], ROLLOUTS[0]], [0.0, 1.0])


def test_advantages_come_back_with_their_rows(tmp_path):
    batch = with_advantages(make_batch(ROLLOUTS, REWARDS), [0.5, -0.5, 0.25, -0.25])
    pq.write_table(batch, tmp_path / "batch.parquet")
    table = read_train_batch(tmp_path / "batch.parquet")
    assert table.schema == TRAIN_SCHEMA
    assert table.column("advantage").to_pylist() == [0.5, -0.5, 0.25, -0.25]
    assert table.column("token_ids").to_pylist() == [list(ROLLOUTS[i].token_ids) for i in (0, 2, 1, 3)]


def test_an_empty_batch_keeps_its_columns(tmp_path):
    empty = with_advantages(make_batch([], []), [])
    pq.write_table(empty, tmp_path / "batch.parquet")
    assert read_train_batch(tmp_path / "batch.parquet").num_rows == 0


def test_reading_a_batch_without_advantages_says_what_is_missing(tmp_path):
    pq.write_table(make_batch(ROLLOUTS, REWARDS), tmp_path / "batch.parquet")
    with pytest.raises(RolloutError, match=r"\['advantage'\] are missing; has compute_advantages run"):
        read_train_batch(tmp_path / "batch.parquet")


def test_reading_checks_every_row(tmp_path):
    batch = with_advantages(make_batch(ROLLOUTS, REWARDS), [0.0] * 4)
    column = batch.column("logprobs").to_pylist()
    column[3] = [math.nan] * len(column[3])
    field = TRAIN_SCHEMA.field("logprobs")
    broken = batch.set_column(TRAIN_SCHEMA.names.index("logprobs"), field, pa.array(column, field.type))
    pq.write_table(broken, tmp_path / "batch.parquet")
    with pytest.raises(RolloutError, match="log-prob nan"):
        read_train_batch(tmp_path / "batch.parquet")
