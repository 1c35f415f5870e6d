"""A snapshot from a tar of the repository's folder in an image, as `docker cp CONTAINER:/testbed -` writes it."""

import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO

from harness.pool.importers.patches import safe_path
from harness.pool.importers.values import ImportProblem
from harness.pool.snapshot import NEVER_SENT

MAX_BYTES = 4 << 30
MAX_FILES = 300_000
_LEFT_IN_IMAGE = frozenset(NEVER_SENT) | {".venv", "node_modules"}
"""History and caches, which no sandbox gets, and dependencies, which the image has."""


def unpack_snapshot(stream: IO[bytes], target: Path, *, max_bytes: int = MAX_BYTES) -> list[str]:
    """Write the files of a tar, without the one folder that they all lie in, below `target`; returns notes.

    Regular files, folders and links that stay inside are written; others are left out and told. Of a git repository
    an empty `.git` is left, so that an agent gets one of a single commit.

    Raises:
        ImportProblem: it is no tar, too large, or a path in it leads out.
    """
    notes: list[str] = []
    size = count = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts[1:]
                if parts == (".git",) and member.isdir():
                    (target / ".git").mkdir(parents=True, exist_ok=True)
                if not parts or not _LEFT_IN_IMAGE.isdisjoint(parts):
                    continue
                path = safe_path("/".join(parts))
                size, count = size + member.size, count + 1
                if size > max_bytes or count > MAX_FILES:
                    raise ImportProblem(f"the repository's folder has more than {max_bytes} bytes or {MAX_FILES} files")
                notes += _write(archive, member, path, target)
    except (tarfile.TarError, EOFError) as error:
        raise ImportProblem(f"the archive of the snapshot cannot be read: {error}") from error
    if not count:
        raise ImportProblem("the archive of the snapshot is empty")
    return notes


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, target: Path) -> Iterable[str]:
    file = target / path
    if not file.parent.resolve().is_relative_to(target.resolve()):
        raise ImportProblem(f"{path} lies behind a link that leads out of the repository")
    if member.isdir():
        file.mkdir(parents=True, exist_ok=True)
        return []
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_symlink() or file.is_file():
        file.unlink()
    if member.issym():
        leads_to = os.path.normpath(os.path.join(os.path.dirname(path), member.linkname))
        if member.linkname.startswith("/") or leads_to.split("/")[0] == "..":
            return [f"link {path} left out: it leads out of the repository"]
        file.symlink_to(member.linkname)
        return []
    if member.islnk():
        twin = target.joinpath(*PurePosixPath(member.linkname).parts[1:])
        if twin.is_symlink() or not twin.is_file() or not twin.resolve().is_relative_to(target.resolve()):
            return [f"link {path} left out: what it shares is not in the archive"]
        shutil.copyfile(twin, file)
        return []
    data = archive.extractfile(member) if member.isreg() else None
    if data is None:
        return [f"{path} left out: it is no file, folder or link"]
    with file.open("wb") as out:
        shutil.copyfileobj(data, out)
    if member.mode & 0o100:
        file.chmod(0o755)
    return []
