"""The batch: the rollouts of a step that reach the optimizer, as a parquet file with a row for each segment.

Rows are keyed by session and segment. What a trial earned stands in each of its rows, which are next to each other:
whoever compares trials takes one row of each (`trials_of`), and its tokens all together (`sum_by_trial`).
Columns of tokens are lists with one entry a token of the rollout. What only a sampled token has is NaN where
`loss_mask` is 0, so that a use of it cannot go unnoticed. Whole columns are handled as one flat array: a batch may hold
tens of millions of tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Int

from trainer.rollout import NO_VERSION, ROLLOUT_SCHEMA, Rollout, RolloutError

BATCH_SCHEMA = pa.schema(
    [
        *ROLLOUT_SCHEMA,
        pa.field("score", pa.float64()),
        pa.field("reward", pa.float64()),
        pa.field("named_rewards", pa.map_(pa.string(), pa.float64())),
        pa.field("greedy_baseline", pa.float64()),
    ]
)

OPTIONAL_COLUMNS = ("returns", "old_logprobs", "ref_logprobs", "values")
"""Columns of tokens that some algorithms need; null in all rows where they are not computed."""

TOKEN_COLUMNS = ("advantages", *OPTIONAL_COLUMNS)

TRAIN_SCHEMA = pa.schema([*BATCH_SCHEMA, *(pa.field(name, pa.list_(pa.float32())) for name in TOKEN_COLUMNS)])


@dataclass(frozen=True)
class BatchRow:
    """A segment of a trial, and what the whole trial earned.

    `score` is the verdict's reward, `reward` what shaping made of it. `named_rewards` are its parts, empty if there are
    none. `greedy_baseline` is the reward of the group's greedy trial, None if it has none.
    """

    rollout: Rollout
    score: float
    reward: float
    named_rewards: Mapping[str, float] = field(default_factory=dict)
    greedy_baseline: float | None = None


def make_batch(rows: Sequence[BatchRow]) -> pa.Table:
    """A batch without advantages yet, ordered by group, session and segment: the order of ending is not seen.

    Raises:
        RolloutError: a segment that is there twice, segments of a trial that differ in group or in what it earned, or
            a reward that is not finite.
    """
    keys: set[tuple[str, int]] = set()
    earned: dict[str, Any] = {}
    for row in rows:
        session, segment = row.rollout.session_id, row.rollout.segment
        if not np.isfinite([row.score, row.reward, row.greedy_baseline or 0.0, *row.named_rewards.values()]).all():
            raise RolloutError(f"{session}: a reward is not finite: {row.reward}, {row.named_rewards}")
        if (session, segment) in keys:
            raise RolloutError(f"{session}: segment {segment} appears twice in the batch")
        keys.add((session, segment))
        of_trial = (row.rollout.group_id, row.score, row.reward, dict(row.named_rewards), row.greedy_baseline)
        if earned.setdefault(session, of_trial) != of_trial:
            raise RolloutError(
                f"{session}: segment {segment} has {of_trial} as group and reward, another one {earned[session]}; "
                "both are the trial's, and the same for all its segments"
            )
    rows = sorted(rows, key=lambda row: (row.rollout.group_id, row.rollout.session_id, row.rollout.segment))
    columns: dict[str, Any] = {
        name: _column([getattr(row.rollout, name) for row in rows], ROLLOUT_SCHEMA.field(name).type)
        for name in ROLLOUT_SCHEMA.names
    }
    for name in ("score", "reward", "greedy_baseline"):
        columns[name] = [getattr(row, name) for row in rows]
    columns["named_rewards"] = [list(row.named_rewards.items()) for row in rows]
    return pa.table(columns, schema=BATCH_SCHEMA)


def with_advantages(batch: pa.Table, advantages: Any, **columns: Any) -> pa.Table:
    """The batch with an advantage for each sampled token, and the optional columns that are given.

    All are flat [N] over the sampled tokens, in the order of the rows: arrays or CPU tensors of numbers.

    Raises:
        RolloutError: a count that does not fit, a value that is not finite, or a column of another name.
    """
    unknown = columns.keys() - set(OPTIONAL_COLUMNS)
    if unknown:
        raise RolloutError(f"a batch has no columns {sorted(unknown)}; it may have {', '.join(OPTIONAL_COLUMNS)}")
    batch = batch.select(BATCH_SCHEMA.names)
    given = {"advantages": advantages} | columns
    arrays = [
        _scatter(batch, name, np.asarray(given[name], dtype=np.float32))
        if given.get(name) is not None
        else pa.nulls(batch.num_rows, TRAIN_SCHEMA.field(name).type)
        for name in TOKEN_COLUMNS
    ]
    return pa.Table.from_arrays([*batch.columns, *arrays], schema=TRAIN_SCHEMA)


def sampled(table: pa.Table, column: str) -> np.ndarray:
    """The entries [N] of a column of tokens where `loss_mask` is 1, in the order of the rows.

    Raises:
        RolloutError: the column is not computed, or not of the length of its rollouts.
    """
    values = table.column(column)
    if values.null_count:
        raise RolloutError(f"{column} is not computed in {values.null_count} of {table.num_rows} rows")
    mask, flat = _mask(table), _flat(table, column)
    if len(flat) != len(mask):
        raise RolloutError(f"{column} has {len(flat)} entries for {len(mask)} tokens")
    return flat[mask]


def sampled_lengths(table: pa.Table) -> Int[np.ndarray, " R"]:
    """Sampled tokens of each row."""
    ends = np.concatenate([[0], np.cumsum(_mask(table), dtype=np.int64)])[_offsets(_lengths(table, "loss_mask"))]
    return np.diff(ends)


def trials_of(table: pa.Table) -> pa.Table:
    """One row for each trial, that of its first segment, without what belongs to tokens.

    Raises:
        RolloutError: rows of a trial are not next to each other.
    """
    large = (pa.types.is_list, pa.types.is_binary)
    columns = [field.name for field in table.schema if not any(kind(field.type) for kind in large)]
    return table.select(columns).take(_trial_starts(table))


def sum_by_trial(table: pa.Table, values: Int[np.ndarray, " R"]) -> Int[np.ndarray, " T"]:
    """Sums of a value of each row over the rows of each trial.

    Raises:
        RolloutError: rows of a trial are not next to each other.
    """
    starts = _trial_starts(table)
    return np.add.reduceat(values, starts) if len(starts) else np.empty(0, dtype=np.int64)


def _trial_starts(table: pa.Table) -> Int[np.ndarray, " T"]:
    sessions = table.column("session_id").to_pylist()
    starts = [i for i, session in enumerate(sessions) if not i or session != sessions[i - 1]]
    if len({sessions[i] for i in starts}) != len(starts):
        raise RolloutError("segments of a trial must be next to each other in a batch; sort it by session and segment")
    return np.array(starts, dtype=np.int64)


def read_train_batch(path: Path) -> pa.Table:
    """A batch with advantages, each row checked as a rollout.

    Raises:
        RolloutError: columns are missing, or a row breaks an invariant.
    """
    table = pq.read_table(path)
    missing = set(TRAIN_SCHEMA.names) - set(table.column_names)
    if missing:
        raise RolloutError(f"{path}: columns {sorted(missing)} are missing; has compute_advantages run?")
    _check_rollouts(table)
    for name in TOKEN_COLUMNS:
        if name == "advantages" or table.column(name).null_count < table.num_rows:
            _check_token_column(table, name)
    return table


def _check_rollouts(table: pa.Table) -> None:
    """`Rollout`'s invariants on all rows at once; the first row that breaks one is then told in its own words."""
    lengths = _lengths(table, "token_ids")
    others = [_lengths(table, name) for name in ("loss_mask", "logprobs", "weight_versions")]
    prompts = table.column("prompt_length").to_numpy()
    bad = np.logical_or.reduce([lengths != other for other in others]) | (prompts < 1) | (prompts > lengths)
    if not bad.any():
        raw, logprobs, versions = (_flat(table, name) for name in ("loss_mask", "logprobs", "weight_versions"))
        mask = raw == 1
        fits = np.where(
            mask,
            np.isfinite(logprobs) & (logprobs <= 1e-4) & (versions >= 0),
            (raw == 0) & np.isnan(logprobs) & (versions == NO_VERSION),
        )
        offsets = _offsets(lengths)
        bad[_rows_of(np.flatnonzero(~fits), offsets)] = True
        trained = np.flatnonzero(mask)
        starts = offsets[:-1]
        bad |= np.searchsorted(trained, starts + prompts) > np.searchsorted(trained, starts)
    for i in np.flatnonzero(bad)[:1].tolist():
        Rollout.from_row(table.slice(i, 1).to_pylist()[0])
        raise RolloutError(f"row {i} breaks an invariant of the token record")


def _check_token_column(table: pa.Table, name: str) -> None:
    lengths = _lengths(table, "token_ids")
    bad = _lengths(table, name) != lengths
    if not bad.any():
        flat, mask = _flat(table, name), _mask(table)
        bad[_rows_of(np.flatnonzero(np.where(mask, ~np.isfinite(flat), ~np.isnan(flat))), _offsets(lengths))] = True
    for i in np.flatnonzero(bad)[:1].tolist():
        session = table.column("session_id")[i].as_py()
        raise RolloutError(
            f"{session}: {name} must hold a finite number for each sampled token and NaN for each other one"
        )


def _scatter(batch: pa.Table, name: str, values: Float[np.ndarray, " N"]) -> pa.ListArray:
    """Flat values of the sampled tokens as one list a row."""
    mask, offsets = _mask(batch), _offsets(_lengths(batch, "loss_mask"))
    trained = np.flatnonzero(mask)
    if values.shape != trained.shape:
        raise RolloutError(f"{name} has shape {values.shape} for {len(trained)} sampled tokens")
    for i in np.flatnonzero(~np.isfinite(values))[:1].tolist():
        session = batch.column("session_id")[int(_rows_of(trained[i], offsets))].as_py()
        raise RolloutError(f"{session}: {name} of a sampled token is {values[i]}; it must be finite")
    flat = np.full(len(mask), np.nan, dtype=np.float32)
    flat[trained] = values
    return _lists(offsets, flat, TRAIN_SCHEMA.field(name).type)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_list(kind) or any(value is None for value in values):
        return pa.array(values, kind)
    arrays = [np.asarray(value, dtype=kind.value_type.to_pandas_dtype()) for value in values]
    flat = np.concatenate(arrays) if arrays else np.empty(0, dtype=kind.value_type.to_pandas_dtype())
    return _lists(_offsets(np.array([len(array) for array in arrays], dtype=np.int64)), flat, kind)


def _lists(offsets: Int[np.ndarray, " R+1"], flat: np.ndarray, kind: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat, kind.value_type), type=kind)


def _offsets(lengths: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R+1"]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _rows_of(tokens: Any, offsets: Int[np.ndarray, " R+1"]) -> Any:
    """Rows to which flat positions belong."""
    return np.searchsorted(offsets, tokens, side="right") - 1


def _array(table: pa.Table, column: str) -> pa.ListArray:
    chunked = table.column(column)
    return (
        chunked.chunk(0) if chunked.num_chunks == 1 else pa.concat_arrays(chunked.chunks or [chunked.combine_chunks()])
    )


def _lengths(table: pa.Table, column: str) -> Int[np.ndarray, " R"]:
    """Entries in each row; a null counts as none."""
    return np.asarray(_array(table, column).value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _flat(table: pa.Table, column: str) -> np.ndarray:
    return np.asarray(_array(table, column).flatten().to_numpy(zero_copy_only=False))


def _mask(table: pa.Table) -> np.ndarray:
    return _flat(table, "loss_mask") == 1
