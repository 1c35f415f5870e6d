"""The batch file: the same rows in the same order however trials ended, and checked when it is read."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rollouts import make_rollout

from trainer.batch import (
    OPTIONAL_COLUMNS,
    TOKEN_COLUMNS,
    TRAIN_SCHEMA,
    BatchRow,
    make_batch,
    read_train_batch,
    sampled,
    sampled_lengths,
    sum_by_trial,
    trials_of,
    with_advantages,
)
from trainer.rollout import RolloutError

ROLLOUTS = [
    make_rollout(f"s-{i}", group_id=f"g-{i % 2}", turns=[(4,) * (i + 1), (5, 6)], between=[7] * i) for i in range(4)
]
ROWS = [BatchRow(rollout, float(i % 2), float(i)) for i, rollout in enumerate(ROLLOUTS)]
ORDER = (0, 2, 1, 3)
"""Rows of the batch, as indices into ROWS."""
SAMPLED = sum(rollout.response_length for rollout in ROLLOUTS)
ADVANTAGES = np.linspace(-1, 1, SAMPLED, dtype=np.float32)


def trained(**columns):
    return with_advantages(make_batch(ROWS), ADVANTAGES, **columns)


def as_text(table):
    """As text, since NaN is unequal to itself."""
    return str(table.to_pylist())


def test_order_does_not_depend_on_arrival():
    forward, backward = make_batch(ROWS), make_batch(ROWS[::-1])
    assert forward.column("session_id").to_pylist() == ["s-0", "s-2", "s-1", "s-3"]
    assert as_text(forward) == as_text(backward)


def test_a_row_is_its_rollout_and_what_it_earned():
    named = {"tests": 1.0, "style": -0.25}
    row = BatchRow(ROLLOUTS[1], score=1.0, reward=0.75, named_rewards=named, greedy_baseline=0.5)
    (stored,) = make_batch([row]).to_pylist()
    assert str({name: stored[name] for name in ROLLOUTS[1].to_row()}) == str(
        {name: list(value) if isinstance(value, tuple) else value for name, value in ROLLOUTS[1].to_row().items()}
    )
    assert (stored["score"], stored["reward"], stored["greedy_baseline"]) == (1.0, 0.75, 0.5)
    assert dict(stored["named_rewards"]) == named


def test_a_row_without_parts_and_baseline():
    (stored, *_) = make_batch(ROWS).to_pylist()
    assert stored["named_rewards"] == [] and stored["greedy_baseline"] is None


def segment_of(row, segment, **changes):
    return replace(row, rollout=replace(row.rollout, segment=segment, num_segments=9, **changes))


def test_a_segment_appears_once():
    with pytest.raises(RolloutError, match="s-0: segment 0 appears twice"):
        make_batch([ROWS[0], ROWS[0]])


def test_segments_of_a_trial_are_next_to_each_other_in_their_order():
    rows = [segment_of(ROWS[0], 2), ROWS[2], segment_of(ROWS[0], 0), segment_of(ROWS[0], 1), ROWS[1]]
    batch = make_batch(rows)
    keys = list(zip(batch.column("session_id").to_pylist(), batch.column("segment").to_pylist(), strict=True))
    assert keys == [("s-0", 0), ("s-0", 1), ("s-0", 2), ("s-2", 0), ("s-1", 0)]
    trials = trials_of(batch)
    assert trials.column("session_id").to_pylist() == ["s-0", "s-2", "s-1"]
    assert "token_ids" not in trials.column_names and "named_rewards" in trials.column_names
    assert sum_by_trial(batch, sampled_lengths(batch)).tolist() == [3 * 3, 5, 4]
    assert sum_by_trial(make_batch([]), np.empty(0, dtype=np.int64)).tolist() == []


def test_segments_of_a_trial_that_are_apart_are_refused():
    batch = make_batch([segment_of(ROWS[0], 0), segment_of(ROWS[0], 1), ROWS[2]])
    with pytest.raises(RolloutError, match="next to each other"):
        trials_of(batch.take([0, 2, 1]))


@pytest.mark.parametrize(
    "other",
    [
        replace(segment_of(ROWS[1], 1), reward=0.5),
        replace(segment_of(ROWS[1], 1), score=0.5),
        replace(segment_of(ROWS[1], 1), greedy_baseline=0.0),
        replace(segment_of(ROWS[1], 1), named_rewards={"tests": 1.0}),
        segment_of(ROWS[1], 1, group_id="g-other"),
    ],
)
def test_what_a_trial_earned_is_the_same_for_all_its_segments(other):
    with pytest.raises(RolloutError, match=r"s-1: segment 1 has .* both are the trial's"):
        make_batch([segment_of(ROWS[1], 0), other])


@pytest.mark.parametrize(
    "row",
    [
        BatchRow(ROLLOUTS[0], 0.0, math.nan),
        BatchRow(ROLLOUTS[0], 0.0, 0.0, {"style": math.inf}),
        BatchRow(ROLLOUTS[0], 0.0, 0.0, greedy_baseline=-math.inf),
    ],
)
def test_a_reward_that_is_not_finite_is_refused(row):
    with pytest.raises(RolloutError, match="s-0: a reward is not finite"):
        make_batch([row])


def test_flat_values_lie_at_their_sampled_tokens_and_nowhere_else():
    rows = trained(values=2 * ADVANTAGES).to_pylist()
    flat = iter(ADVANTAGES.tolist())
    for row, number in zip(rows, ORDER, strict=True):
        assert row["token_ids"] == list(ROLLOUTS[number].token_ids)
        assert len(row["advantages"]) == len(row["values"]) == len(row["loss_mask"])
        for mask, advantage, value in zip(row["loss_mask"], row["advantages"], row["values"], strict=True):
            if mask:
                assert advantage == next(flat) and value == 2 * advantage
            else:
                assert math.isnan(advantage) and math.isnan(value)
        assert row["returns"] is None
    assert next(flat, None) is None


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 3)), max_size=5
    ),
    st.integers(0, 5),
)
def test_sampled_is_the_inverse_of_scattering(shapes, start):
    rows = [
        BatchRow(make_rollout(f"s-{i}", prompt=[1] * p, turns=[[2] * n for n in turns], between=[3] * b), 0.0, 0.0)
        for i, (p, turns, b) in enumerate(shapes)
    ]
    batch = make_batch(rows)
    lengths = [row.rollout.response_length for row in rows]
    assert sampled_lengths(batch).tolist() == lengths
    flat = np.arange(sum(lengths), dtype=np.float32) - 3
    table = with_advantages(batch, flat, **dict.fromkeys(OPTIONAL_COLUMNS, torch.from_numpy(flat + 1)))
    assert np.array_equal(sampled(table, "advantages"), flat)
    for name in OPTIONAL_COLUMNS:
        assert np.array_equal(sampled(table, name), flat + 1)
    # of a part of the table too, and of one in several chunks
    part = table.slice(start)
    assert np.array_equal(sampled(part, "advantages"), flat[sum(lengths[:start]) :])
    both = pa.concat_tables([table.slice(0, start), part])
    assert np.array_equal(sampled(both, "advantages"), flat)
    assert sampled_lengths(both).tolist() == lengths


def test_log_probs_of_sampled_tokens():
    want = [p for i in ORDER for p in ROLLOUTS[i].logprobs if not math.isnan(p)]
    assert sampled(make_batch(ROWS), "logprobs").tolist() == pytest.approx(want)


def test_a_column_that_is_not_computed():
    with pytest.raises(RolloutError, match="values is not computed in 4 of 4 rows"):
        sampled(trained(), "values")


def test_counts_must_agree():
    with pytest.raises(RolloutError, match=rf"advantages has shape \({SAMPLED - 1},\) for {SAMPLED} sampled tokens"):
        with_advantages(make_batch(ROWS), ADVANTAGES[1:])
    with pytest.raises(RolloutError, match="returns has shape"):
        trained(returns=[0.0])


def test_a_value_that_is_not_finite_names_its_session():
    advantages = ADVANTAGES.copy()
    advantages[ROLLOUTS[0].response_length] = np.nan
    with pytest.raises(RolloutError, match="s-2: advantages of a sampled token is nan"):
        with_advantages(make_batch(ROWS), advantages)


def test_a_column_of_another_name():
    with pytest.raises(RolloutError, match=r"no columns \['entropy'\]; it may have returns, old_logprobs"):
        trained(entropy=ADVANTAGES)


def test_advantages_may_be_computed_again():
    again = with_advantages(trained(values=ADVANTAGES), ADVANTAGES * 2)
    assert again.schema == TRAIN_SCHEMA
    assert np.array_equal(sampled(again, "advantages"), ADVANTAGES * 2)
    assert again.column("values").null_count == 4


def test_a_batch_comes_back_from_its_file(tmp_path):
    table = trained(old_logprobs=-np.abs(ADVANTAGES))
    pq.write_table(table, tmp_path / "batch.parquet", row_group_size=2)
    read = read_train_batch(tmp_path / "batch.parquet")
    assert read.schema == TRAIN_SCHEMA
    assert as_text(read) == as_text(table)
    assert np.array_equal(sampled(read, "old_logprobs"), -np.abs(ADVANTAGES))


def test_an_empty_batch_keeps_its_columns(tmp_path):
    empty = with_advantages(make_batch([]), [])
    pq.write_table(empty, tmp_path / "batch.parquet")
    table = read_train_batch(tmp_path / "batch.parquet")
    assert table.num_rows == 0 and table.schema == TRAIN_SCHEMA
    assert len(sampled(table, "advantages")) == len(sampled_lengths(table)) == 0


def test_reading_a_batch_without_advantages_says_what_is_missing(tmp_path):
    pq.write_table(make_batch(ROWS), tmp_path / "batch.parquet")
    with pytest.raises(RolloutError, match=r"'advantages'.* are missing; has compute_advantages run"):
        read_train_batch(tmp_path / "batch.parquet")


def change(column, change):
    """A batch in which `change` was done to the last row's `column`."""
    table = trained(values=ADVANTAGES)
    values = table.column(column).to_pylist()
    values[-1] = change(values[-1])
    field = TRAIN_SCHEMA.field(column)
    return table.set_column(TRAIN_SCHEMA.names.index(column), field, pa.array(values, field.type))


@pytest.mark.parametrize(
    ("column", "changed", "message"),
    [
        ("logprobs", lambda v: [math.nan] * len(v), "log-prob nan"),
        ("logprobs", lambda v: [*v[:-1], 0.5], "log-prob 0.5"),
        ("logprobs", lambda v: [-1.0, *v[1:]], "s-3: token 0 was not sampled"),
        ("logprobs", lambda v: v[:-1], "s-3: logprobs has 11 entries for 12 tokens"),
        ("weight_versions", lambda v: [-1] * len(v), "weight version -1"),
        ("weight_versions", lambda v: [0] * len(v), "s-3: token 0 was not sampled"),
        ("loss_mask", lambda v: [2, *v[1:]], "s-3: .*loss_mask"),
        ("loss_mask", lambda v: [*v[:2], 1, *v[3:]], "s-3: a prompt token has loss_mask 1"),
        ("prompt_length", lambda v: 0, "s-3: prompt_length 0 of 12 tokens"),
        ("prompt_length", lambda v: 15, "s-3: prompt_length 15 of 12 tokens"),
        ("prompt_length", lambda v: 4, "s-3: a prompt token has loss_mask 1"),
        ("advantages", lambda v: [0.0] * len(v), "s-3: advantages must hold"),
        ("advantages", lambda v: [math.nan] * len(v), "s-3: advantages must hold"),
        ("advantages", lambda v: v[1:], "s-3: advantages must hold"),
        ("advantages", lambda v: None, "s-3: advantages must hold"),
        ("values", lambda v: None, "s-3: values must hold"),
        ("values", lambda v: [*v[:-1], math.inf], "s-3: values must hold"),
    ],
)
def test_reading_checks_every_row(tmp_path, column, changed, message):
    # the environment wrote 3 tokens in the last row, 3 are its prompt
    pq.write_table(change(column, changed), tmp_path / "batch.parquet")
    with pytest.raises(RolloutError, match=message):
        read_train_batch(tmp_path / "batch.parquet")


def test_every_token_column_may_be_read(tmp_path):
    pq.write_table(trained(**dict.fromkeys(OPTIONAL_COLUMNS, ADVANTAGES)), tmp_path / "batch.parquet")
    table = read_train_batch(tmp_path / "batch.parquet")
    assert all(np.array_equal(sampled(table, name), ADVANTAGES) for name in TOKEN_COLUMNS)
