"""What a task's snapshot held when a policy was scored on it: a patch taken from one fits no other."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prefect import task

from harness.pool.snapshot import NEVER_SENT
from harness.pool.task import Task
from tasks.draw import read_groups
from tasks.journal import write_json
from tasks.policy import staged
from tasks.run import RunRef

FILE = "snapshots.json"
_READERS = 4
_CHUNK = 1 << 20


@task(**staged("record_snapshots"))
async def record_snapshots(run: RunRef, label: str) -> int:
    """Write snapshots.json of an evaluation: the digest of each task's snapshot, by task. Returns their number."""
    path = run.journal.stage_dir(label) / FILE
    tasks = {group.task_id: group.task_path for group in read_groups(path.with_name("groups.parquet"))}
    if not path.is_file():
        write_json(path, await asyncio.to_thread(snapshot_digests, tasks))
    return len(tasks)


def snapshot_digests(tasks: Mapping[str, Path]) -> dict[str, str]:
    """Digest of the snapshot of each of `tasks`, which maps ids to directories.

    Raises:
        TaskError: one of them is no task any more.
    """
    with ThreadPoolExecutor(_READERS) as readers:
        digests = readers.map(lambda path: snapshot_digest(Task.load(path).snapshot), tasks.values())
        return dict(zip(tasks, digests, strict=True))


def snapshot_digest(snapshot: Path) -> str:
    """Digest of the names, contents and executable bits of what a sandbox gets of a snapshot.

    Links count by their target. History and caches, which no sandbox gets, do not count.
    """
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(snapshot):
        folders[:] = sorted(set(folders) - set(NEVER_SENT))
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted({*names, *links} - set(NEVER_SENT)):
            path = Path(folder, name)
            place = path.relative_to(snapshot).as_posix().encode("utf-8", "surrogateescape")
            digest.update(len(place).to_bytes(4, "big") + place + _content(path))
    return digest.hexdigest()[:32]


def _content(path: Path) -> bytes:
    """A file's kind and the digest of its content, of the same length for all."""
    if path.is_symlink():
        return b"link" + hashlib.sha256(os.fsencode(path.readlink())).digest()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return (b"exec" if path.stat().st_mode & 0o100 else b"file") + digest.digest()
