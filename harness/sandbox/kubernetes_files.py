"""What goes into a pod's workspace and what comes out of it, as entries; see `op_write` and `op_tree` inside.

Paths that come out are hostile and only ever keys of a `Tree`. A file that the host itself has uploaded is not sent
back while its content is the same: its hash stands for it.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.sandbox.base import SandboxError
from harness.sandbox.tree import Tree, TreeLimits, WorkspaceError, file_parts, relative_parts

_SENT_BYTES = 64 << 20


@dataclass
class Parcel:
    """Entries for `op_write` with the contents of its files in order; `sources` says where each content came from."""

    entries: list[list[Any]] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    sources: dict[str, Path] = field(default_factory=dict)

    def add_file(self, path: str, data: bytes, executable: bool | None) -> None:
        self.entries.append(["file", path, len(data), executable])
        self.contents.append(data)


def pack_files(files: Mapping[str, bytes | None]) -> Parcel:
    """`files` as `Sandbox.write_files` takes them.

    Raises:
        WorkspaceError: a path leads out, or names no file.
    """
    parcel = Parcel()
    for relpath, data in files.items():
        folders, name = file_parts(relpath)
        path = "/".join((*folders, name))
        if data is None:
            parcel.entries.append(["gone", path, 0, None])
        else:
            parcel.add_file(path, data, None)
    return parcel


def pack_folder(source: Path, relpath: str) -> Parcel:
    """All that lies below the trusted directory `source`, to be put at `relpath`.

    Raises:
        WorkspaceError: a link that leads out of `source`, or a special file.
    """
    parcel = Parcel()
    parts = relative_parts(relpath)
    if parts:
        parcel.entries.append(["folder", "/".join(parts), 0, None])
    _pack(parcel, source, source, "/".join(parts) + "/" if parts else "")
    return parcel


def _pack(parcel: Parcel, top: Path, folder: Path, prefix: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            path, file = prefix + entry.name, Path(entry.path)
            if entry.is_symlink():
                parcel.entries.append(["link", path, _checked_target(top, file), None])
            elif entry.is_dir():
                parcel.entries.append(["folder", path, 0, None])
                _pack(parcel, top, file, path + "/")
            elif entry.is_file():
                data = file.read_bytes()
                parcel.add_file(path, data, bool(entry.stat().st_mode & 0o111))
                parcel.sources[hashlib.sha256(data).hexdigest()] = file
            else:
                raise WorkspaceError(f"{file} is no file, folder or link; remove it from the snapshot")


def _checked_target(top: Path, link: Path) -> str:
    target = os.readlink(link)
    inside = os.path.normpath(os.path.join(link.parent, target))
    if os.path.isabs(target) or not Path(inside).is_relative_to(top):
        raise WorkspaceError(f"{link} links to {target!r}, outside the snapshot; replace the link by a file")
    return target


def sent_bytes(limits: TreeLimits) -> int:
    """How many bytes of contents a pod sends back at most; beyond, files are left out."""
    return max(_SENT_BYTES, 4 * limits.max_kept_bytes)


def unpack_tree(
    told: Mapping[str, Any],
    content: bytes,
    limits: TreeLimits,
    keep: Callable[[str, bytes], bool],
    sources: Mapping[str, Path],
) -> Tree:
    """The tree of an answer of `op_tree`, bounded by `limits`.

    Raises:
        SandboxError: a file that was uploaded has changed on the host since.
    """
    tree = Tree(overflow=str(told["overflow"]))
    position = total = kept = 0
    for count, (kind, encoded, *rest) in enumerate(told["entries"], 1):
        path = os.fsdecode(base64.b64decode(encoded))
        if count > limits.max_files:
            tree.overflow = f"more than {limits.max_files} files"
            break
        if kind == "odd" or not path.isprintable():
            tree.rejected.append((ascii(path), "unprintable name"))
        elif kind == "link":
            tree.links[path] = os.fsdecode(base64.b64decode(rest[0]))
        elif kind == "special":
            tree.rejected.append((path, "no regular file"))
        elif kind == "deep":
            tree.rejected.append((path, f"deeper than {limits.max_depth} folders"))
        elif kind == "closed":
            tree.rejected.append((path, f"cannot be opened ({rest[0]})"))
        elif kind == "big":
            tree.seen.add(path)
            tree.rejected.append((path, f"larger than {limits.max_file_bytes} bytes"))
        elif kind == "unsent":
            tree.seen.add(path)
            if not tree.overflow:
                tree.rejected.append((path, f"changes of more than {limits.max_kept_bytes} bytes"))
        if kind != "file":
            continue
        size, digest, follows = rest
        data = content[position : position + size] if follows else _uploaded(digest, sources)
        position += size if follows else 0
        if not path.isprintable():
            continue
        tree.seen.add(path)
        total += len(data)
        if total > limits.max_total_bytes:
            tree.overflow = f"more than {limits.max_total_bytes} bytes"
            break
        if not keep(path, data):
            continue
        if kept + len(data) > limits.max_kept_bytes:
            tree.rejected.append((path, f"changes of more than {limits.max_kept_bytes} bytes"))
            continue
        kept += len(data)
        tree.files[path] = data
    return tree


def _uploaded(digest: str, sources: Mapping[str, Path]) -> bytes:
    try:
        data = sources[digest].read_bytes()
    except (KeyError, OSError) as error:
        raise SandboxError(f"a file that was uploaded cannot be read on the host any more: {error!r}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise SandboxError(f"{sources[digest]} has changed since it was uploaded; leave snapshots alone during a run")
    return data
