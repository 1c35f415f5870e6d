"""One import: every candidate becomes a task with a row in the index, or a line in `rejected.jsonl`.

A task is written under another name and renamed when it is whole, with a record of the candidate's digest beside it;
so an import that was killed goes on where it stopped, and one that is run again writes nothing twice.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.pool.importers.base import IMPORTERS, Candidate, ImportOptions, Rejected, Written
from harness.pool.importers.values import ImportProblem
from harness.pool.index import PoolError, TaskPointer, write_index

INDEX, REJECTED = "index.parquet", "rejected.jsonl"
_RECORDS = ".imported"
_ITS_OWN_FAULT = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
"""Errors of the file system that come from what a data set calls its files, and not from this machine."""


@dataclass(frozen=True)
class ImportReport:
    """What an import came to. `notes` are by instance id; `reused` counts tasks that an earlier run had written."""

    index: Path | None
    pointers: tuple[TaskPointer, ...]
    rejected: tuple[Rejected, ...]
    notes: dict[str, tuple[str, ...]]
    reused: int


def import_pool(
    importer: str,
    source: Path,
    root: Path,
    options: ImportOptions = ImportOptions(),  # noqa: B008  (frozen)
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Import what lies at `source` into the pool folder `root`.

    Tasks go to `root/tasks`, the index of all of this import to `root/index.parquet`, which `root/rejected.jsonl`
    completes: together they name every row of the source. Without a single task there is no index. `progress` is told
    the tasks and rejections so far.

    Raises:
        PoolError: there is no such importer, the source cannot be read, or another import runs on `root`.
    """
    if importer not in IMPORTERS:
        raise PoolError(f"importer {importer!r} is unknown; choose one of: {', '.join(sorted(IMPORTERS))}")
    if options.repos is not None and not options.repos.is_dir():
        raise PoolError(f"{options.repos}: no such folder; --repos is a folder with clones of repositories")
    root = root.resolve()
    pointers: dict[str, TaskPointer] = {}
    rejected: list[Rejected] = []
    notes: dict[str, tuple[str, ...]] = {}
    reused = 0
    with only_one(root):
        for found in IMPORTERS[importer].read(source, options):
            if isinstance(found, Rejected):
                rejected.append(found)
            elif found.instance_id in pointers:
                rejected.append(
                    Rejected(found.instance_id, found.origin, "duplicate instance_id; the first one counts")
                )
            else:
                try:
                    written, old = _admit(found, root)
                except ImportProblem as problem:
                    rejected.append(Rejected(found.instance_id, found.origin, str(problem)))
                else:
                    reused += old
                    path = root / "tasks" / found.instance_id
                    pointers[found.instance_id] = TaskPointer(
                        found.instance_id, path, written.data_source, written.extra
                    )
                    if written.notes:
                        notes[found.instance_id] = written.notes
            if progress:
                progress(len(pointers), len(rejected))
        _write_rejected(root / REJECTED, rejected)
        index = root / INDEX if pointers else None
        if index:
            write_index(list(pointers.values()), index)
        else:
            (root / INDEX).unlink(missing_ok=True)
    return ImportReport(index, tuple(pointers.values()), tuple(rejected), notes, reused)


def _admit(candidate: Candidate, root: Path) -> tuple[Written, bool]:
    """Write a candidate's task, unless this very candidate is there already."""
    folder = root / "tasks" / candidate.instance_id
    record = root / _RECORDS / f"{candidate.instance_id}.json"
    if not folder.resolve().is_relative_to(root / "tasks") or folder.resolve() == root / "tasks":
        raise ImportProblem(f"instance_id {candidate.instance_id!r} is no safe name of a folder")
    if folder.exists():
        stored = _read_record(record)
        if stored.get("digest") == candidate.digest:
            return Written(stored["data_source"], stored["extra"], tuple(stored["notes"])), True
        raise ImportProblem(
            f"{folder} exists and was made of something else, or with other options; remove it, or import into "
            "another folder"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".new.", dir=folder.parent))
    try:
        partial = scratch / candidate.instance_id
        try:
            written = candidate.write(partial)
        except OSError as error:
            if error.errno not in _ITS_OWN_FAULT:
                raise
            raise ImportProblem(f"its files cannot be written: {error.strerror}: {error.filename}") from error
        text = {"digest": candidate.digest, "data_source": written.data_source, "extra": written.extra}
        _replace(
            record, json.dumps(text | {"notes": written.notes})
        )  # before the task: a task without it is a stranger
        os.rename(partial, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return written, False


def _read_record(record: Path) -> dict[str, Any]:
    try:
        stored = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _write_rejected(path: Path, rejected: list[Rejected]) -> None:
    _replace(path, "".join(json.dumps(vars(entry), ensure_ascii=False) + "\n" for entry in rejected))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", errors="surrogateescape")
    os.replace(partial, path)


@contextlib.contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Hold the pool folder for an import or a filling; remove what a killed one left half written.

    Raises:
        PoolError: another one holds it.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PoolError(f"another import runs on {root}; wait for it, or choose another folder") from None
        for leftover in (*root.glob("*/.new.*"), *(root / "tasks").glob(".*.partial")):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
