"""Filling the pending tasks of an index with their snapshots: out of their images, from local clones or archives."""

import dataclasses
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.pool.environment import check_environment, is_below
from harness.pool.importers.adapted import PYTHON
from harness.pool.importers.archive import unpack_snapshot
from harness.pool.importers.base import Rejected
from harness.pool.importers.folder import HIDDEN_PLACES, ORIGIN, PutSnapshot, fill_task
from harness.pool.importers.images import ImageSnapshots
from harness.pool.importers.repos import RepoFolder
from harness.pool.importers.run import only_one
from harness.pool.importers.values import ImportProblem
from harness.pool.index import PoolError, TaskPointer, read_index, root_variable, write_index
from harness.pool.task import Task, TaskEnvironment, TaskError, TaskPending, environment_of, read_task_config


def fill_index(
    index: Path,
    *,
    repos: Path | None = None,
    tars: Path | None = None,
    images: ImageSnapshots | None = None,
    progress: Callable[[int, int], None] = lambda filled, left: None,
) -> tuple[int, list[Rejected]]:
    """Fill what is pending; the rows' `ready` becomes true. Returns how many were filled, and why others were not.

    Each task is whole or as it was, so a run that was killed goes on where it stopped.

    Args:
        index: The index, which is rewritten.
        repos: Folder of clones, from which a task gets the files of its commit.
        tars: Folder with `<instance_id>.tar` of the repository's folder in each image.
        images: Where the repository's folder is taken out of each task's image.
        progress: Is told how many were filled, and how many could not be, so far.

    Raises:
        PoolError: the index cannot be read, there are no such folders, or another filling or import runs there.
    """
    if [repos, tars, images].count(None) != 2:
        raise PoolError("snapshots come from clones, images or archives: give one of --repos, --images and --tars")
    for folder in (repos, tars):
        if folder is not None and not folder.is_dir():
            raise PoolError(f"{folder}: no such folder; give the one with the clones (--repos) or archives (--tars)")
    with only_one(index.resolve().parent):
        for row in read_index(index, absent_tasks=True):
            _put_back(row.task_path)
        return _fill(index, repos, tars, images, progress)


def _fill(
    index: Path,
    repos: Path | None,
    tars: Path | None,
    images: ImageSnapshots | None,
    progress: Callable[[int, int], None],
) -> tuple[int, list[Rejected]]:
    rows = read_index(index)
    filled, rejected, after = 0, [], []
    for row in rows:
        try:
            if _is_pending(row):
                if images is not None:
                    _fill_from_image(row, images)
                else:
                    fill_task(row.task_path, _from_clone(row, repos) if repos else _from_tar(row, tars or Path()))
                filled += 1
        except (ImportProblem, TaskError) as problem:
            rejected.append(Rejected(row.instance_id, str(row.task_path), str(problem)))
            after.append(row)
        else:
            after.append(dataclasses.replace(row, extra=row.extra | {"ready": True}))
        progress(filled, len(rejected))
    write_index(after, index, root_variable(index))
    return filled, rejected


def _put_back(task: Path) -> None:
    """Undo what a kill in the middle of `fill_task`'s exchange of two folders has left: the task under another name."""
    if not task.exists():
        for before in task.parent.glob(f".{task.name}.????????.before"):
            os.rename(before, task)
            return


def _is_pending(row: TaskPointer) -> bool:
    try:
        Task.load(row.task_path)
    except TaskPending:
        return True
    return False


def _from_clone(row: TaskPointer, repos: Path) -> PutSnapshot:
    origin = read_task_config(row.task_path).metadata.get(ORIGIN)
    if not isinstance(origin, dict) or not origin.get("base_commit"):
        raise ImportProblem("its task.toml names no repository and commit under [metadata.origin]; fill it by --images")
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


def _fill_from_image(row: TaskPointer, images: ImageSnapshots) -> None:
    config = read_task_config(row.task_path)
    wanted = environment_of(config)
    assert wanted.image is not None, "a pending task has one"
    source, workdir = wanted.image, wanted.workdir or images.workdir_of(wanted.image)
    found = TaskEnvironment(source, workdir, wanted.python)
    covered = is_below(found.python, workdir)
    removed = config.metadata.get(HIDDEN_PLACES, [])
    if covered or removed:
        image = images.adapted(source, found.python if covered else None, removed)
        found = TaskEnvironment(image, workdir, PYTHON if covered else found.python)
    try:
        check_environment(found)
    except ValueError as error:
        raise ImportProblem(str(error)) from error
    fill_task(row.task_path, lambda folder: images.write(source, workdir, folder), found)
