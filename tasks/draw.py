"""The groups of a round, and which tasks take the place of those without a signal: by seed and step alone."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.pool.index import PoolError, TaskPointer, read_index

GROUP_SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("task_id", pa.string()),
        ("task_path", pa.string()),
        ("cluster", pa.string()),
        ("attempts", pa.int32()),
        ("greedy", pa.bool_()),
        ("scaffold", pa.string()),
        ("repository", pa.string()),
        ("difficulty", pa.string()),
    ]
)

GREEDY = "#greedy"
"""What a greedy trial's group id has after that of the group whose baseline it gives."""


@dataclass(frozen=True)
class Group:
    """One task in one round. `cluster` is what scores are resampled by: variants of a function are not independent.

    `scaffold`, `repository` and `difficulty` are what the index says of the task, None where it says nothing. A
    `greedy` group is one trial at temperature 0, whose reward is the baseline of the group that `baseline_of` names.
    """

    group_id: str
    task_id: str
    task_path: Path
    cluster: str
    attempts: int
    greedy: bool = False
    scaffold: str | None = None
    repository: str | None = None
    difficulty: str | None = None

    @property
    def baseline_of(self) -> str:
        return self.group_id.removesuffix(GREEDY)


def read_pool(index: Path, difficulty: Sequence[str]) -> list[TaskPointer]:
    """The tasks of an index, of the given difficulties only if any are given.

    Raises:
        PoolError: the index cannot be used, or no task is of such a difficulty.
    """
    pool = read_index(index)
    chosen = [task for task in pool if not difficulty or task.extra.get("difficulty") in difficulty]
    if not chosen:
        known = sorted({str(task.extra.get("difficulty")) for task in pool})
        raise PoolError(
            f"data.difficulty is {list(difficulty)}, but {index} has {', '.join(known)}; choose among these"
        )
    return chosen


def draw_refill(
    pool: Sequence[TaskPointer], tried: Collection[str], accepted: int, wanted: int, step: int, refill: int, seed: int
) -> list[TaskPointer]:
    """Fresh tasks in the place of groups that carry no signal, as refill `refill` (from 1) of step `step`.

    As many as `accepted` falls short of `wanted`, none of those already `tried` in this step; fewer where the pool has
    no more. The order in which they come depends on seed, step and refill alone.
    """
    order = np.random.default_rng([seed, step, refill]).permutation(len(pool))
    fresh = [pool[i] for i in order if pool[i].instance_id not in tried]
    return fresh[: max(wanted - accepted, 0)]


def spread(pool: Sequence[TaskPointer], count: int | None) -> list[TaskPointer]:
    """About evenly spaced `count` tasks of the pool, in its order; all of them if None."""
    if count is None or count >= len(pool):
        return list(pool)
    return [pool[i] for i in sorted({round(x) for x in np.linspace(0, len(pool) - 1, count)})]


def as_groups(tasks: Sequence[TaskPointer], label: str, attempts: int, greedy: bool = False) -> list[Group]:
    """Groups of one round, keyed by round and task; each followed by its greedy trial if such are asked for."""
    groups = [
        Group(
            f"{label}/{t.instance_id}",
            t.instance_id,
            t.task_path,
            str(t.extra.get("function", t.instance_id)),
            attempts,
            scaffold=t.extra.get("scaffold") or None,
            repository=_told(t, "repo"),
            difficulty=_told(t, "difficulty"),
        )
        for t in tasks
    ]
    if not greedy:
        return groups
    return [
        row
        for group in groups
        for row in (group, replace(group, group_id=group.group_id + GREEDY, attempts=1, greedy=True))
    ]


def _told(task: TaskPointer, name: str) -> str | None:
    value = task.extra.get(name)
    return str(value) if value is not None and value != "" else None


def groups_path(folder: Path, refill: int = 0) -> Path:
    """Where the groups of a round are in its stage folder; those that a refill added have a file of their own."""
    return folder / (f"groups_refill_{refill}.parquet" if refill else "groups.parquet")


def groups_table(groups: Sequence[Group]) -> pa.Table:
    """Groups as the rows of groups.parquet."""
    return pa.Table.from_pylist(
        [vars(group) | {"task_path": str(group.task_path)} for group in groups], schema=GROUP_SCHEMA
    )


def read_groups(path: Path) -> list[Group]:
    """The groups in a groups.parquet."""
    rows = pq.read_table(path).to_pylist()
    return [Group(**row | {"task_path": Path(row["task_path"])}) for row in rows]


def read_draws(folder: Path) -> list[list[Group]]:
    """The groups that a round began with, then those that each refill added."""
    draws = [read_groups(groups_path(folder))]
    while (path := groups_path(folder, len(draws))).is_file():
        draws.append(read_groups(path))
    return draws
