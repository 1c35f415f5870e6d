"""Filling the pending tasks of an index with their snapshots, from local clones or from archives of their images."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from harness.pool.importers.archive import unpack_snapshot
from harness.pool.importers.base import Rejected
from harness.pool.importers.folder import ORIGIN, PutSnapshot, fill_task
from harness.pool.importers.repos import RepoFolder
from harness.pool.importers.values import ImportProblem
from harness.pool.index import PoolError, TaskPointer, read_index, root_variable, write_index
from harness.pool.task import Task, TaskError, TaskPending, read_task_config


def fill_index(index: Path, *, repos: Path | None = None, tars: Path | None = None) -> tuple[int, list[Rejected]]:
    """Fill what is pending; the rows' `ready` becomes true. Returns how many were filled, and why others were not.

    Each task is whole or as it was, so a run that was killed goes on where it stopped.

    Args:
        index: The index, which is rewritten.
        repos: Folder of clones, from which a task gets the files of its commit.
        tars: Folder with `<instance_id>.tar` of the repository's folder in each image.

    Raises:
        PoolError: the index cannot be read, or there are no such folders.
    """
    if (repos is None) == (tars is None):
        raise PoolError("snapshots come from clones or from archives: give one of --repos and --tars")
    for folder in (repos, tars):
        if folder is not None and not folder.is_dir():
            raise PoolError(f"{folder}: no such folder; give the one with the clones (--repos) or archives (--tars)")
    rows = read_index(index)
    filled, rejected, after = 0, [], []
    for row in rows:
        try:
            if _is_pending(row):
                fill_task(row.task_path, _from_clone(row, repos) if repos else _from_tar(row, tars or Path()))
                filled += 1
        except (ImportProblem, TaskError) as problem:
            rejected.append(Rejected(row.instance_id, str(row.task_path), str(problem)))
            after.append(row)
        else:
            after.append(dataclasses.replace(row, extra=row.extra | {"ready": True}))
    write_index(after, index, root_variable(index))
    return filled, rejected


def _is_pending(row: TaskPointer) -> bool:
    try:
        Task.load(row.task_path)
    except TaskPending:
        return True
    return False


def _from_clone(row: TaskPointer, repos: Path) -> PutSnapshot:
    origin = read_task_config(row.task_path).metadata.get(ORIGIN)
    if not isinstance(origin, dict) or not origin.get("base_commit"):
        raise ImportProblem("its task.toml names no repository and commit under [metadata.origin]; fill it by --tars")
    repo, commit = str(origin.get("repo", "")), str(origin["base_commit"])

    def put(folder: Path) -> Iterable[str]:
        return RepoFolder(repos).write(repo, commit, folder)

    return put


def _from_tar(row: TaskPointer, tars: Path) -> PutSnapshot:
    file = tars / f"{row.instance_id}.tar"
    if not file.is_file():
        environment = read_task_config(row.task_path).environment
        raise ImportProblem(
            f"no {file.name} in {tars}; make it: docker cp $(docker create {environment.docker_image}):"
            f"{environment.workdir} - > {file.name}"
        )

    def put(folder: Path) -> Iterable[str]:
        with file.open("rb") as stream:
            return unpack_snapshot(stream, folder)

    return put
