"""Writing a pool as a folder of Harbor tasks, which others can run and `testgrad pool import harbor` reads back."""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.pool.importers.base import Rejected
from harness.pool.importers.harbor import INDEX, folder_digest
from harness.pool.index import PoolError, TaskPointer, write_index
from harness.pool.task import TaskError, read_task_config

_NEEDED = ("instruction.md", "task.toml", "tests/test.sh", "solution/solve.sh")


def export_pool(rows: Sequence[TaskPointer], target: Path) -> tuple[list[TaskPointer], list[Rejected]]:
    """Copy the tasks of `rows` to `target/<instance_id>`, with an index; returns the rows and what Harbor cannot run.

    A folder that is there already is kept if it is the same, so an export that was broken off can be run again.

    Raises:
        PoolError: a folder at the target holds something else, or none of the tasks can be run by Harbor.
    """
    target = target.resolve()
    done: list[TaskPointer] = []
    rejected: list[Rejected] = []
    for row in rows:
        if problem := harbor_problem(row.task_path):
            rejected.append(Rejected(row.instance_id, str(row.task_path), problem))
            continue
        _copy(row.task_path, target / row.instance_id)
        done.append(dataclasses.replace(row, task_path=target / row.instance_id))
    if not done:
        raise PoolError(f"none of the {len(rows)} tasks can be run by Harbor: {rejected[0].reason if rejected else ''}")
    write_index(done, target / INDEX)
    return done, rejected


def harbor_problem(path: Path) -> str:
    """Why Harbor cannot run the task at `path`; empty if it can."""
    if missing := [name for name in _NEEDED if not (path / name).is_file()]:
        return f"it has no {missing[0]}, which Harbor runs; add it"
    try:
        config = read_task_config(path)
    except TaskError as error:
        return str(error)
    if not config.environment.docker_image and not (path / "environment" / "Dockerfile").is_file():
        return "it has neither [environment] docker_image nor environment/Dockerfile; add one"
    return ""


def _copy(source: Path, folder: Path) -> None:
    if folder.exists():
        if folder_digest(folder) != folder_digest(source):
            raise PoolError(f"{folder} exists and holds something else; export into another folder")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".new.", dir=folder.parent))
    try:
        shutil.copytree(source, scratch / folder.name, symlinks=True)
        os.rename(scratch / folder.name, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
