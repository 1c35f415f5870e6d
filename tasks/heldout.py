"""Which tasks must not be learnt from: those on which policies are scored."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.pool.index import TaskPointer, read_index

HELDOUT_SPLITS = frozenset({"heldout", "held-out", "held_out", "test", "eval", "val", "valid", "validation", "dev"})
"""Values of an index's column `split` that say so."""

_NAMED = 10


class HeldOutError(ValueError):
    """Held-out tasks among those to be learnt from; the message names them."""


@dataclass
class HeldOut:
    """Held-out tasks, by id and by place: each maps to what says so."""

    ids: dict[str, str] = field(default_factory=dict)
    paths: dict[Path, str] = field(default_factory=dict)
    _found: dict[str, str] = field(default_factory=dict)

    def add_index(self, index: Path) -> None:
        """Hold out the tasks of an index.

        Raises:
            PoolError: it cannot be read.
        """
        for pointer in read_index(index, absent_tasks=True):
            self.ids.setdefault(pointer.instance_id, str(index))
            self.paths.setdefault(pointer.task_path.resolve(), str(index))

    def add_marked(self, index: Path) -> None:
        """Hold out those tasks of an index that its own column `split` marks as such.

        Raises:
            PoolError: it cannot be read.
        """
        for pointer in read_index(index, absent_tasks=True):
            if _is_marked(pointer):
                self.ids.setdefault(pointer.instance_id, _column_of(index))
                self.paths.setdefault(pointer.task_path.resolve(), _column_of(index))

    def look_at(self, task_id: str, task_path: Path) -> None:
        """Note a task that is to be learnt from; `refuse` complains of it if it is held out."""
        by = self.ids.get(task_id) or self.paths.get(task_path.resolve())
        if by is not None:
            self._found[task_id] = by

    def look_at_rows(self, rows: Iterable[TaskPointer], index: Path) -> None:
        """The same for the tasks of an index, whose own column `split` may hold them out."""
        for row in rows:
            self.look_at(row.instance_id, row.task_path)
            if _is_marked(row):
                self._found[row.instance_id] = _column_of(index)

    def refuse(self) -> None:
        """Raises HeldOutError if a task that was looked at is held out, with its name and who says so."""
        if self._found:
            raise HeldOutError(_complaint(self._found))


def _is_marked(row: TaskPointer) -> bool:
    return str(row.extra.get("split", "")).lower() in HELDOUT_SPLITS


def _column_of(index: Path) -> str:
    return f"the column split of {index}"


def _complaint(found: Mapping[str, str]) -> str:
    names = sorted(found)
    told = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    by = "; ".join(sorted(set(found.values())))
    return (
        f"{len(names)} of the tasks to learn from are held out: {told} (by {by}); a score on them would measure "
        "memory. Leave them out of what is learnt from, or out of the held-out index"
    )
