"""Work on whole indexes: uniting, splitting, filtering, counting and checking them. Pure functions on their rows.

`to_frame` and `from_frame` turn rows into a flat pandas table and back, for all else that one may want to do.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from harness.pool.index import PoolError, TaskPointer
from harness.pool.task import Task, TaskError, TaskPending

_FIXED = ("instance_id", "task_path", "data_source")
REPOSITORY_KEYS = ("repo", "package", "function")
"""What of a row tells its repository, the first that is there. Variants of one kata function count as one."""


def to_frame(rows: Sequence[TaskPointer]) -> pd.DataFrame:
    """Rows as a table: instance_id, task_path, data_source, then one column for each key of their extras."""
    records = [dict(zip(_FIXED, (r.instance_id, str(r.task_path), r.data_source), strict=True)) | r.extra for r in rows]
    return pd.DataFrame.from_records(records)


def from_frame(frame: pd.DataFrame) -> list[TaskPointer]:
    """The rows of a table like that of `to_frame`; a missing value is an extra that the row does not have.

    Raises:
        PoolError: a column that each row needs is missing.
    """
    if missing := [name for name in _FIXED if name not in frame.columns]:
        raise PoolError(f"the table lacks the columns {missing}; it has {list(frame.columns)}")
    rows = []
    for record in frame.astype(object).to_dict("records"):
        fixed = [str(record.pop(name)) for name in _FIXED]
        extra = {str(key): _plain(value) for key, value in record.items() if not _is_missing(value)}
        rows.append(TaskPointer(fixed[0], Path(fixed[1]), fixed[2], extra))
    return rows


def repository_of(row: TaskPointer) -> str:
    """What a row is split by. Without a key that tells, the id up to its last part: owner__name of owner__name-12."""
    for key in REPOSITORY_KEYS:
        if isinstance(value := row.extra.get(key), str) and value:
            return value.lower()
    head, dash, tail = row.instance_id.rpartition("-")
    return (head if dash and "__" in head and tail.isalnum() else row.instance_id).lower()


def merge(
    indexes: Sequence[Sequence[TaskPointer]], repeated: Literal["refuse", "first"] = "refuse"
) -> list[TaskPointer]:
    """All rows, in order. An id that comes again is refused, or its first row is kept.

    Raises:
        PoolError: an id comes more than once.
    """
    merged: dict[str, TaskPointer] = {}
    for row in (row for rows in indexes for row in rows):
        known = merged.get(row.instance_id)
        if known is None:
            merged[row.instance_id] = row
        elif repeated == "refuse":
            raise PoolError(
                f"{row.instance_id} is in more than one index ({known.task_path} and {row.task_path}); "
                "drop it from one, or merge with --repeated first"
            )
    return list(merged.values())


def split_by_repository(
    rows: Sequence[TaskPointer], heldout: float, seed: int
) -> tuple[list[TaskPointer], list[TaskPointer]]:
    """(train, heldout) rows, in order, with no repository on both sides; neither side is empty.

    Repositories are drawn in random order for the held-out side while they bring its share of tasks nearer to
    `heldout`. The rows' extra `split` says the side.

    Raises:
        PoolError: the share is not between 0 and 1, or all rows belong to one repository.
    """
    if not 0 < heldout < 1:
        raise PoolError(f"the held-out share is {heldout}; give one between 0 and 1, such as 0.2")
    sizes = Counter(map(repository_of, rows))
    if len(sizes) < 2:
        raise PoolError(
            f"all {len(rows)} tasks belong to one repository ({next(iter(sizes), 'none')}): no way to split"
        )
    order = sorted(sizes)
    random.Random(seed).shuffle(order)
    wanted, chosen, taken = heldout * len(rows), set[str](), 0
    for name in order:
        if abs(taken + sizes[name] - wanted) < abs(taken - wanted) and len(chosen) + 1 < len(sizes):
            chosen.add(name)
            taken += sizes[name]
    if not chosen:
        chosen.add(min(order, key=lambda name: sizes[name]))
    sides: dict[bool, list[TaskPointer]] = {False: [], True: []}
    for row in rows:
        side = repository_of(row) in chosen
        extra = row.extra | {"split": "heldout" if side else "train"}
        sides[side].append(TaskPointer(row.instance_id, row.task_path, row.data_source, extra))
    return sides[False], sides[True]


def filter_rows(rows: Sequence[TaskPointer], where: str) -> list[TaskPointer]:
    """The rows for which a pandas expression is true, such as `0 < pass_rate < 1 and repo != "django/django"`.

    Raises:
        PoolError: the expression cannot be computed on these columns, or is not true or false.
    """
    frame = to_frame(rows)
    try:
        mask: Any = frame.eval(where, engine="python")
    except Exception as error:  # whatever pandas raises, from SyntaxError to its own errors, the expression caused
        known = ", ".join(frame.columns)
        raise PoolError(f"--where {where!r} cannot be computed: {error}; columns: {known}") from error
    if not isinstance(mask, pd.Series) or str(mask.dtype) not in ("bool", "boolean", "object"):
        raise PoolError(f"--where {where!r} is not true or false for each task; compare something, as in pass_rate > 0")
    return [row for row, keep in zip(rows, mask, strict=True) if not _is_missing(keep) and bool(keep)]


def counts(rows: Sequence[TaskPointer], key: str) -> dict[str, int]:
    """How many rows have each value of a key, most first; `repository` stands for what they are split by."""
    values = (repository_of(row) if key == "repository" else row.extra.get(key) for row in rows)
    if key == "data_source":
        values = (row.data_source for row in rows)
    return dict(Counter("-" if value is None else str(value) for value in values).most_common())


def pass_rates(rows: Sequence[TaskPointer]) -> list[float]:
    """The measured pass rates of the rows that have one."""
    found = (row.extra.get("pass_rate") for row in rows)
    return [float(value) for value in found if isinstance(value, int | float) and not isinstance(value, bool)]


@dataclass(frozen=True)
class Finding:
    """Something that `validate` found. `level`: `error` (the task cannot be run), `pending`, or `warning`."""

    instance_id: str
    level: Literal["error", "pending", "warning"]
    text: str


def validate(rows: Sequence[TaskPointer], stored: Sequence[str] = ()) -> Iterator[Finding]:
    """What is wrong with the rows' tasks, one after the other.

    Args:
        rows: The index.
        stored: The rows' paths as the index writes them, to warn of those that hold on this machine only.
    """
    seen: dict[Path, str] = {}
    for number, row in enumerate(rows):
        place = row.task_path.resolve()
        if place in seen:
            yield Finding(row.instance_id, "error", f"is the same task as {seen[place]}; drop one")
        seen[place] = row.instance_id
        if stored and stored[number].startswith("/"):
            yield Finding(
                row.instance_id, "warning", "absolute path; keep the index beside its tasks, or use --variable"
            )
        try:
            Task.load(row.task_path)
        except TaskPending as pending:
            yield Finding(row.instance_id, "pending", str(pending).replace(f"{row.task_path}: ", ""))
        except TaskError as error:
            yield Finding(row.instance_id, "error", str(error).replace(f"{row.task_path}", "task"))


def shared_repositories(rows: Sequence[TaskPointer], others: Sequence[TaskPointer]) -> dict[str, int]:
    """Repositories on both sides, with the number of tasks that `rows` has of each."""
    known = set(map(repository_of, others))
    return dict(Counter(name for name in map(repository_of, rows) if name in known))


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value) or value is pd.NA


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's own; an integer column with gaps comes back from pandas as floats."""
    return value.item() if hasattr(value, "item") else value


def columns(rows: Sequence[TaskPointer]) -> Mapping[str, int]:
    """The keys of the rows' extras, and how many rows have each."""
    return Counter(key for row in rows for key in row.extra)
