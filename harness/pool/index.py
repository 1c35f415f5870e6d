"""The index of a pool: a parquet table of pointers, one row a task.

Filtering, uniting and splitting pools is work on this small table; a task's files are read when a trial runs it. The
columns are those that Lego-RL and verl read: `prompt` (one user message, whose content is the task's path),
`reward_model`, and `extra_info` with `harbor_task_path`, `instance_id`, `data_source` and what else is known. Further
columns are optional; `difficulty`, `source`, `scaffold` and `split` are the ones that have a meaning here.

A path is relative to the index's folder, begins with `${VARIABLE}/` for a place that each machine sets, or is absolute
and holds on one machine only.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

REQUIRED_COLUMNS = ("prompt", "reward_model", "extra_info")
REQUIRED_INFO = ("harbor_task_path", "instance_id", "data_source")
OPTIONAL_COLUMNS = ("difficulty", "source", "scaffold", "split")
"""Extras that have a column of their own; the others are keys of `extra_info`."""

_ROOTED = re.compile(r"\$\{(\w+)\}(?:/(.*))?")


class PoolError(ValueError):
    """An index or a pool that cannot be used; the message names it and the mend."""


@dataclass(frozen=True)
class TaskPointer:
    """One row of an index. `task_path` is absolute; `extra` is what else is known, such as the difficulty."""

    instance_id: str
    task_path: Path
    data_source: str = "harbor"
    extra: dict[str, Any] = field(default_factory=dict)


def write_index(rows: Sequence[TaskPointer], path: Path | str, variable: str | None = None) -> None:
    """Write an index to `path`, complete or not at all.

    A task below the index's folder is stored by relative path, so that the folder can be moved as one; one below the
    folder that the environment variable `variable` names, by a path that begins with it; any other by its absolute
    path.

    Raises:
        PoolError: there are no rows, two have one id, their extras do not fit one table, or `variable` is not set.
    """
    path = Path(path).resolve()
    top = None if variable is None else _variable(variable, path)
    if not rows:
        raise PoolError(f"{path}: refusing to write an index without tasks; loosen the filter that left none")
    _require_unique([row.instance_id for row in rows], path)
    records = []
    present = [name for name in OPTIONAL_COLUMNS if any(row.extra.get(name) is not None for row in rows)]
    for row in rows:
        if reserved := sorted(set(row.extra) & set(REQUIRED_INFO)):
            raise PoolError(f"{path}: extra of {row.instance_id} sets {reserved}, which the index fills; rename it")
        stored = _stored_path(row.task_path, path.parent, variable, top)
        info = {"harbor_task_path": stored, "instance_id": row.instance_id, "data_source": row.data_source}
        records.append(
            {
                "prompt": [{"role": "user", "content": stored}],
                "reward_model": {"style": "rule", "ground_truth": None},
                "extra_info": info | {key: value for key, value in row.extra.items() if key not in OPTIONAL_COLUMNS},
            }
            | {key: row.extra.get(key) for key in present}
        )
    try:
        table = pa.Table.from_pylist(records)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PoolError(f"{path}: extras differ in type between rows ({error}); give each key one type") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    pq.write_table(table, partial)
    os.replace(partial, path)


def read_index(path: Path | str, *, absent_tasks: bool = False) -> list[TaskPointer]:
    """The rows of the index at `path`, in its order. Columns beyond the required ones end up in `extra`.

    With `absent_tasks`, rows whose task is not there are read as well.

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
    absent = [] if absent_tasks else [pointer for pointer in pointers if not pointer.task_path.is_dir()]
    if absent:
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
    # A column goes before a key of the same name: columns are what people change with pandas.
    columns = {name: value for name, value in columns.items() if value is not None}
    known = {name: value for name, value in (info | columns).items() if name not in REQUIRED_INFO}
    return TaskPointer(
        instance_id=info["instance_id"],
        task_path=_task_path(info["harbor_task_path"], path),
        data_source=info["data_source"],
        # Rows share one struct type in parquet, which fills the keys that a row does not have with nulls.
        extra={name: value for name, value in known.items() if value is not None},
    )


def stored_paths(path: Path) -> list[str]:
    """The tasks' paths as the index at `path` writes them."""
    info = pq.read_table(path, columns=["extra_info"]).to_pylist()
    return [str(row["extra_info"]["harbor_task_path"]) for row in info]


def root_variable(path: Path) -> str | None:
    """The environment variable that paths of the index at `path` begin with, if any do."""
    matches = (_ROOTED.fullmatch(stored) for stored in stored_paths(path))
    return next((match[1] for match in matches if match), None)


def _task_path(stored: str, index: Path) -> Path:
    match = _ROOTED.fullmatch(stored)
    if match is None:
        return index.parent / stored
    return _variable(match[1], index) / (match[2] or "")


def _variable(name: str, index: Path) -> Path:
    value = os.environ.get(name)
    if not value:
        raise PoolError(
            f"{index}: its paths begin with ${{{name}}}, which is not set; export {name}=FOLDER of the pool"
        )
    return Path(value).expanduser().resolve()


def _stored_path(task: Path, folder: Path, variable: str | None, top: Path | None) -> str:
    task = task.resolve()
    if task.is_relative_to(folder):
        return task.relative_to(folder).as_posix()
    if top is not None and task.is_relative_to(top):
        return f"${{{variable}}}/{task.relative_to(top).as_posix()}"
    return task.as_posix()


def _require_unique(ids: Sequence[str], path: Path) -> None:
    if len(set(ids)) != len(ids):
        repeated = next(name for name, count in Counter(ids).items() if count > 1)
        raise PoolError(f"{path}: instance {repeated} occurs more than once; a pool is a set, drop the repeats")
