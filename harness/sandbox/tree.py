"""Reading and writing a directory that hostile code has filled.

Every step goes through an open directory descriptor and refuses links, so a link that a trial made, or swaps in at the
last moment, leads nowhere. Only regular files are opened. Depth, number, size and the length of names are bounded.
Rights that the owner lacks are given before they are needed: taking them away must not hinder the host.

Some backends carry this file's text into a sandbox (see `carried`): standard library only, but for a stand-in of
pydantic, Python >= 3.9.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: opening a fifo must not wait
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

MAX_PATH_BYTES = 1024
"""Longer paths are left out of a tree: together with the folder of a snapshot they could exceed the kernel's limit."""

INSIDERS_DOING = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
        *(errno.ENAMETOOLONG, errno.ENOTEMPTY, errno.ETXTBSY, errno.EMLINK, errno.ENXIO, errno.ENODEV),
    }
)
"""Errors that hostile code can bring about by what it leaves in a workspace."""

PRUNED = frozenset({".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"})
"""Folders that are neither read nor counted: what they hold can never be part of a patch."""


class WorkspaceError(ValueError):
    """A path or a file in a workspace that cannot be used; what runs inside can cause it."""


class TreeLimits(BaseModel):
    """Bounds of what is read from a workspace. Beyond those of the whole nothing of it is used: `max_files`,
    `max_total_bytes`, `max_name_bytes`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_files: int = Field(default=20_000, ge=1, description="files and folders in a workspace")
    max_total_bytes: int = Field(default=512 << 20, ge=1, description="bytes of all files of a workspace")
    max_name_bytes: int = Field(
        default=4 << 20, ge=1, description="bytes of the paths of all files and folders, and of what links lead to"
    )
    max_file_bytes: int = Field(default=4 << 20, ge=1, description="bytes of one file; larger ones are left out")
    max_kept_bytes: int = Field(
        default=16 << 20, ge=1, description="bytes of all kept files; further ones are left out"
    )
    max_depth: int = Field(default=64, ge=1, le=200, description="folders in folders; deeper ones are left out")


@dataclass
class Tree:
    """What lies in a workspace. All keys are relative POSIX paths.

    `seen` are all regular files, `links` the targets of links, `files` the content of the files that were wanted.
    `rejected` holds (path, reason) of what was left out. `overflow`, if not empty, says which bound of the whole was
    passed; `seen` is incomplete then.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    rejected: list[tuple[str, str]] = field(default_factory=list)
    overflow: str = ""


def file_parts(relpath: str) -> tuple[tuple[str, ...], str]:
    """(folders, name) of the path of a file; raises as `relative_parts` does."""
    *folders, name = relative_parts(relpath) or ("",)
    if not name:
        raise WorkspaceError(f"path {relpath!r} names no file")
    return tuple(folders), name


def relative_parts(relpath: str) -> tuple[str, ...]:
    """The components of a path that stays below its root; () for the root itself.

    Raises:
        WorkspaceError: the path is absolute, holds `..` or a NUL, or cannot be encoded.
    """
    path = PurePosixPath(relpath)
    try:
        encoded = os.fsencode(relpath)
    except UnicodeEncodeError as error:
        raise WorkspaceError(f"path {relpath!r} cannot be a file name; use plain text") from error
    if path.is_absolute() or ".." in path.parts or b"\0" in encoded:
        raise WorkspaceError(f"path {relpath!r} leads out of the workspace; use a relative path without '..'")
    if len(path.parts) > 200 or any(len(os.fsencode(part)) > 255 for part in path.parts):
        raise WorkspaceError(f"path {relpath[:80]!r}... is too long for a file system")
    return path.parts


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Make WorkspaceErrors, which say `what`, of the errors that hostile code can bring about."""
    try:
        yield
    except OSError as error:
        if error.errno not in INSIDERS_DOING:
            raise
        raise WorkspaceError(f"{what} ({error.strerror})") from error


@contextmanager
def open_folder(root: int, parts: tuple[str, ...], owner: int | None = None, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder at `parts` below `root`, reached without following a link.

    With `create`, missing folders are made and given to uid and gid `owner`.

    Raises:
        WorkspaceError: a part is missing, a link, or no folder.
    """
    _give_rights(root)
    current = os.dup(root)
    try:
        for part in parts:
            with blaming(f"{'/'.join(parts)}: {part!r} is no folder"):
                if create:
                    _make_folder(current, part, owner)
                make_accessible(current, part)
                below = os.open(part, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def read_regular(folder: int, name: str, max_bytes: int) -> bytes:
    """Content of the regular file `name` in `folder`.

    Raises:
        WorkspaceError: it is missing, a link, no regular file, unreadable, or larger than `max_bytes`.
    """
    make_accessible(folder, name)
    with blaming(f"{name!r} cannot be read"):
        fd = os.open(name, _READ, dir_fd=folder)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise WorkspaceError(f"{name!r} is no regular file")
        if status.st_size > max_bytes:
            raise WorkspaceError(f"{name!r} has {status.st_size} bytes; at most {max_bytes} are read")
        with open(fd, "rb", closefd=False) as stream:
            data = stream.read(max_bytes + 1)
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise WorkspaceError(f"{name!r} grew beyond {max_bytes} bytes while it was read")
    return data


def write_regular(
    folder: int, name: str, data: bytes, owner: int | None = None, executable: bool | None = None
) -> None:
    """Put a new regular file `name` into `folder` in place of any file or link there.

    It belongs to uid and gid `owner`; `executable=None` keeps what the replaced file was.

    Raises:
        WorkspaceError: a folder has that name.
    """
    if executable is None:
        executable = _is_executable(folder, name)
    remove_regular(folder, name)
    with blaming(f"{name!r} cannot be made"):
        fd = os.open(name, _CREATE, 0o755 if executable else 0o644, dir_fd=folder)
    with open(fd, "wb") as stream:
        if owner is not None:
            os.fchown(fd, owner, owner)
        stream.write(data)


def remove_regular(folder: int, name: str) -> None:
    """Remove the file or link `name` if there is one.

    Raises:
        WorkspaceError: a folder has that name.
    """
    with blaming(f"{name!r} cannot be replaced"):
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass


def read_tree(root: int, limits: TreeLimits, keep: Callable[[str, bytes], bool]) -> Tree:
    """All that lies below `root`, within `limits`, with the content of the files for which `keep(path, content)`."""
    walk = _Walk(limits, keep)
    while walk.pending and not walk.tree.overflow:
        path = walk.pending.pop()
        try:
            with open_folder(root, PurePosixPath(path).parts) as fd:
                walk.folder(fd, path)
        except WorkspaceError as error:
            walk.tree.rejected.append((path or ".", str(error)))
    return walk.tree


class _Walk:
    """Folders are opened one after the other from the root on, so that depth costs neither descriptors nor stack."""

    def __init__(self, limits: TreeLimits, keep: Callable[[str, bytes], bool]) -> None:
        self.tree = Tree()
        self.limits = limits
        self.keep = keep
        self.pending = [""]
        self.entries = self.names = self.total = self.kept = 0

    def folder(self, fd: int, path: str) -> None:
        prefix = path and path + "/"
        with os.scandir(fd) as entries:
            for entry in entries:
                if self.tree.overflow:
                    return
                if entry.name in PRUNED and entry.is_dir(follow_symlinks=False):
                    continue
                self.entry(fd, entry, prefix + entry.name)

    def entry(self, folder: int, entry: "os.DirEntry[str]", path: str) -> None:
        self.entries += 1
        length = len(os.fsencode(path))
        self.named(length)
        if self.entries > self.limits.max_files:
            self.tree.overflow = f"more than {self.limits.max_files} files"
        if self.tree.overflow:
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        if not path.isprintable():  # also the surrogates that stand for bytes which are no UTF-8
            self.tree.rejected.append((ascii(path), "unprintable name"))
        elif length > MAX_PATH_BYTES:
            self.tree.rejected.append((path, f"path of more than {MAX_PATH_BYTES} bytes"))
        elif stat.S_ISDIR(status.st_mode):
            if path.count("/") < self.limits.max_depth:
                self.pending.append(path)
            else:
                self.tree.rejected.append((path, f"deeper than {self.limits.max_depth} folders"))
        elif stat.S_ISLNK(status.st_mode):
            self.tree.links[path] = target = os.readlink(entry.name, dir_fd=folder)
            self.named(len(os.fsencode(target)))
        elif stat.S_ISREG(status.st_mode):
            self.regular(folder, entry.name, path, status.st_size)
        else:
            self.tree.rejected.append((path, "no regular file"))

    def named(self, length: int) -> None:
        self.names += length
        if self.names > self.limits.max_name_bytes:
            self.tree.overflow = f"names of more than {self.limits.max_name_bytes} bytes"

    def regular(self, folder: int, name: str, path: str, size: int) -> None:
        self.tree.seen.add(path)
        self.total += size
        if self.total > self.limits.max_total_bytes:
            self.tree.overflow = f"more than {self.limits.max_total_bytes} bytes"
            return
        if size > self.limits.max_file_bytes:
            self.tree.rejected.append((path, f"larger than {self.limits.max_file_bytes} bytes"))
            return
        try:
            data = read_regular(folder, name, self.limits.max_file_bytes)
        except WorkspaceError as error:
            self.tree.rejected.append((path, str(error)))
            return
        if not self.keep(path, data):
            return
        if self.kept + len(data) > self.limits.max_kept_bytes:
            self.tree.rejected.append((path, f"changes of more than {self.limits.max_kept_bytes} bytes"))
            return
        self.kept += len(data)
        self.tree.files[path] = data


def put(
    root: int,
    kind: str,
    path: str,
    content: bytes | str | None = None,
    executable: bool | None = None,
    owner: int | None = None,
) -> None:
    """Make the `folder`, `file` or `link` at `path` below `root`, with its folders; or see that it is `gone`.

    `content` are a file's bytes, or what a link leads to; `executable` is as for `write_regular`. What is made belongs
    to uid and gid `owner`.

    Raises:
        WorkspaceError: the path leads out, or something is in its way.
    """
    if kind == "folder":
        with open_folder(root, relative_parts(path), owner, create=True):
            return
    folders, name = file_parts(path)
    with open_folder(root, folders, owner, create=kind != "gone") as folder:
        if kind == "file":
            assert isinstance(content, bytes)
            write_regular(folder, name, content, owner, executable)
            return
        remove_regular(folder, name)
        if kind == "link":
            assert isinstance(content, str)
            with blaming(f"{path!r} cannot be made"):
                os.symlink(content, name, dir_fd=folder)


def make_accessible(folder: int, name: str) -> None:
    """Give the owner full rights to the file or folder `name`, never to what a link of that name points to.

    Where that cannot be, whoever opens it next learns why.
    """
    try:
        fd = os.open(name, _LOOK, dir_fd=folder)
    except OSError:
        return
    try:
        _give_rights(fd)
    finally:
        os.close(fd)


def _give_rights(fd: int) -> None:
    """Give the owner full rights to the open folder, or the right to read the open file."""
    mode = os.fstat(fd).st_mode
    if mode & 0o700 == 0o700 or not (stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and not mode & 0o400)):
        return
    try:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode) | 0o700)  # fchmod does not take what was opened to look at
    except OSError:
        pass


def clear_folder(root: int) -> None:
    """Remove all that lies in the open folder `root`, however deep, in constant memory and descriptors.

    Subfolders of a subfolder are moved up to `root` before it is removed, so nothing recurses and no path gets long.
    Nothing may run in the folder meanwhile.
    """
    pending = True
    while pending:
        pending = False
        for name in os.listdir(root):
            if _unlink_or_rmdir(root, name):
                continue
            make_accessible(root, name)
            below = os.open(name, _DIRECTORY, dir_fd=root)
            try:
                for inner in os.listdir(below):
                    if not _unlink_or_rmdir(below, inner):
                        make_accessible(below, inner)
                        os.rename(inner, f"moved-{secrets.token_hex(8)}", src_dir_fd=below, dst_dir_fd=root)
                        pending = True
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=root)


def _unlink_or_rmdir(folder: int, name: str) -> bool:
    """Whether `name` is gone; False for a folder that is not empty."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return True
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        return False
    return True


def _make_folder(parent: int, name: str, owner: int | None) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return
    if owner is not None:
        os.chown(name, owner, owner, dir_fd=parent, follow_symlinks=False)


def _is_executable(folder: int, name: str) -> bool:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o100)
