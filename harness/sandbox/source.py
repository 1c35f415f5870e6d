"""Reading a folder that the host trusts, such as a snapshot, to be put into a workspace."""

import os
from collections.abc import Iterator
from pathlib import Path

from harness.sandbox.tree import WorkspaceError, relative_parts


def source_entries(source: Path, at: str = ".") -> Iterator[tuple[str, str, Path]]:
    """(kind, path, host path) of all that lies in the trusted folder `source`, folders before what is in them.

    Kinds and paths are those of `put`; paths begin with `at`, which comes first.

    Raises:
        WorkspaceError: a link that leads out of `source`, or a special file.
    """
    top = "/".join(relative_parts(at))
    if top:
        yield "folder", top, source
    pending = [(source, top and top + "/")]
    while pending:
        folder, prefix = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                path, file = prefix + entry.name, Path(entry.path)
                if entry.is_symlink():
                    _require_inside(source, file)
                    yield "link", path, file
                elif entry.is_dir():
                    yield "folder", path, file
                    pending.append((file, path + "/"))
                elif entry.is_file():
                    yield "file", path, file
                else:
                    raise WorkspaceError(f"{file} is no file, folder or link; remove it from the snapshot")


def source_content(kind: str, file: Path) -> tuple[bytes | str | None, bool | None]:
    """(content, executable) for `put`, of an entry of `source_entries`."""
    if kind == "file":
        return file.read_bytes(), bool(file.stat().st_mode & 0o111)
    return (os.readlink(file) if kind == "link" else None), None


def _require_inside(top: Path, link: Path) -> None:
    target = os.readlink(link)
    inside = os.path.normpath(os.path.join(link.parent, target))
    if os.path.isabs(target) or not Path(inside).is_relative_to(top):
        raise WorkspaceError(f"{link} links to {target!r}, outside the snapshot; replace the link by a file")
