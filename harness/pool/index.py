"""The index of a pool: a parquet table of pointers, one row a task.

Filtering, uniting and splitting pools is work on this small table; a task's files are read when a trial runs it. The
columns are those that Lego-RL and verl read: `prompt` (one user message, whose content is the task's path),
`reward_model`, and `extra_info` with `harbor_task_path`, `instance_id`, `data_source` and what else is known.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

REQUIRED_COLUMNS = ("prompt", "reward_model", "extra_info")
REQUIRED_INFO = ("harbor_task_path", "instance_id", "data_source")


class PoolError(ValueError):
    """An index or a pool that cannot be used; the message names it and the mend."""


@dataclass(frozen=True)
class TaskPointer:
    """One row of an index. `task_path` is absolute; `extra` is what else is known, such as the difficulty."""

    instance_id: str
    task_path: Path
    data_source: str = "harbor"
    extra: dict[str, Any] = field(default_factory=dict)


def write_index(rows: Sequence[TaskPointer], path: Path | str) -> None:
    """Write an index to `path`, complete or not at all.

    A task below the index's folder is stored by relative path, so that the folder can be moved as one; any other by its
    absolute path.

    Raises:
        PoolError: there are no rows, two have one id, or their extras do not fit one table.
    """
    path = Path(path).resolve()
    if not rows:
        raise PoolError(f"{path}: refusing to write an index without tasks; loosen the filter that left none")
    _require_unique([row.instance_id for row in rows], path)
    records = []
    for row in rows:
        if reserved := sorted(set(row.extra) & set(REQUIRED_INFO)):
            raise PoolError(f"{path}: extra of {row.instance_id} sets {reserved}, which the index fills; rename it")
        stored = _stored_path(row.task_path, path.parent)
        info = {"harbor_task_path": stored, "instance_id": row.instance_id, "data_source": row.data_source}
        records.append(
            {
                "prompt": [{"role": "user", "content": stored}],
                "reward_model": {"style": "rule", "ground_truth": None},
                "extra_info": info | row.extra,
            }
        )
    try:
        table = pa.Table.from_pylist(records)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PoolError(f"{path}: extras differ in type between rows ({error}); give each key one type") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    pq.write_table(table, partial)
    os.replace(partial, path)


def read_index(path: Path | str) -> list[TaskPointer]:
    """The rows of the index at `path`, in its order. Columns beyond the required ones end up in `extra`.

    Raises:
        PoolError: no such index, not an index, no tasks in it, or a task that it points to is missing.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise PoolError(f"{path}: no such index; build the pool first, or correct the path")
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise PoolError(f"{path} is not a parquet file ({error}); build the index again") from error
    if missing := [name for name in REQUIRED_COLUMNS if name not in table.column_names]:
        raise PoolError(f"{path}: columns {missing} are missing; it has {table.column_names}")
    if not table.num_rows:
        raise PoolError(f"{path}: the index holds no tasks; choose another, or loosen the filter that wrote it")
    pointers = [_pointer(record, path) for record in table.to_pylist()]
    _require_unique([pointer.instance_id for pointer in pointers], path)
    if absent := [pointer for pointer in pointers if not pointer.task_path.is_dir()]:
        raise PoolError(
            f"{path}: {len(absent)} of {len(pointers)} task directories are missing, the first {absent[0].task_path}; "
            "move the index together with its tasks, or build the pool again"
        )
    return pointers


def _pointer(record: dict[str, Any], path: Path) -> TaskPointer:
    info = record.pop("extra_info")
    if not isinstance(info, dict) or any(info.get(name) is None for name in REQUIRED_INFO):
        raise PoolError(f"{path}: a row's extra_info lacks one of {list(REQUIRED_INFO)}; it is {info}")
    columns = {name: value for name, value in record.items() if name not in REQUIRED_COLUMNS}
    known = {name: value for name, value in (columns | info).items() if name not in REQUIRED_INFO}
    return TaskPointer(
        instance_id=info["instance_id"],
        task_path=path.parent / info["harbor_task_path"],
        data_source=info["data_source"],
        # Rows share one struct type in parquet, which fills the keys that a row does not have with nulls.
        extra={name: value for name, value in known.items() if value is not None},
    )


def _stored_path(task: Path, folder: Path) -> str:
    task = task.resolve()
    return task.relative_to(folder).as_posix() if task.is_relative_to(folder) else task.as_posix()


def _require_unique(ids: Sequence[str], path: Path) -> None:
    if len(set(ids)) != len(ids):
        repeated = next(i for n, i in enumerate(ids) if i in ids[:n])
        raise PoolError(f"{path}: instance {repeated} occurs more than once; a pool is a set, drop the repeats")
