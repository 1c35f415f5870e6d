"""What goes into a pod's workspace and what comes out of it, as entries; see `pod_files` for the far end.

Paths that come out are hostile and only ever keys of a `Tree`. A file that the host itself has uploaded is not sent
back while its content is the same: its hash stands for it.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.sandbox.base import SandboxError
from harness.sandbox.sieve import Sieve
from harness.sandbox.source import source_content, source_entries
from harness.sandbox.tree import Tree, TreeLimits, file_parts

_SENT_BYTES = 64 << 20


@dataclass
class Parcel:
    """Entries for `write` with the contents of its files in order; `sources` says where each content came from."""

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
    """All that lies below the trusted directory `source`, to be put at `relpath`; raises as `source_entries` does."""
    parcel = Parcel()
    for kind, path, file in source_entries(source, relpath):
        content, executable = source_content(kind, file)
        if isinstance(content, bytes):
            parcel.add_file(path, content, executable)
            parcel.sources[hashlib.sha256(content).hexdigest()] = file
        else:
            parcel.entries.append([kind, path, content, None])
    return parcel


def moved_sources(sources: Mapping[str, Path], old: Path, new: Path) -> dict[str, Path]:
    """`sources` with the files of `new` for those below `old`; what `new` lacks is none any more, and sent back."""
    moved = {d: new / file.relative_to(old) if file.is_relative_to(old) else file for d, file in sources.items()}
    return {digest: file for digest, file in moved.items() if file.is_file()}


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
    """The tree of an answer to `tree`, bounded by `limits`.

    Raises:
        SandboxError: a file that was uploaded has changed on the host since.
    """
    sieve = Sieve(limits, keep)
    position = 0
    for path, size, digest, follows in told["files"]:
        if follows:
            sieve.add(path, content[position : position + size])
            position += size
        elif digest in sources:
            sieve.add(path, _uploaded(sources[digest], digest))
        else:
            sieve.leave_out(path)
    return sieve.tree(told["tree"])


def _uploaded(source: Path, digest: str) -> bytes:
    try:
        data = source.read_bytes()
    except OSError as error:
        raise SandboxError(f"a file that was uploaded cannot be read on the host any more: {error!r}") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise SandboxError(f"{source} has changed since it was uploaded; leave snapshots alone during a run")
    return data
