"""Reads and writes a pod's workspace for the host, by the functions of tree.py. Runs in the keeper, see `pod_main`."""

import errno
import hashlib
import json
import os
from typing import Any, BinaryIO

from harness.sandbox.tree import INSIDERS_DOING, TreeLimits, WorkspaceError, file_parts, open_folder, put, read_regular
from harness.sandbox.tree import read_tree as read_folder

_WORKSPACE = "/workspace"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_Answer = tuple[dict[str, Any], list[bytes]]


def operate_on_files(job: dict[str, Any], stdin: BinaryIO) -> _Answer:
    """The answer to a job; `refused` says what of the workspace does not allow it, which hostile code can cause."""
    operations = {"write": write, "read": read, "tree": read_tree}
    root = os.open(job.get("root", _WORKSPACE), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return operations[job["op"]](root, job, stdin)
    except WorkspaceError as error:
        return {"refused": str(error)}, []
    except OSError as error:
        if error.errno not in INSIDERS_DOING | _FULL:
            raise
        return {"refused": f"{type(error).__name__}: {error}"}, []
    finally:
        os.close(root)


def write(root: int, job: dict[str, Any], stdin: BinaryIO) -> _Answer:
    """Make the entries [kind, path, size or target, executable]; the files' contents follow the job."""
    for kind, path, value, executable in job["entries"]:
        content = value
        if kind == "file":
            content = stdin.read(value)
            if len(content) != value:
                raise EOFError("the input ended early")
        put(root, kind, path, content, executable)
    return {}, []


def read(root: int, job: dict[str, Any], stdin: BinaryIO) -> _Answer:
    """Content of one regular file."""
    folders, name = file_parts(job["path"])
    with open_folder(root, folders) as folder:
        data = read_regular(folder, name, job["max_bytes"])
    return {"size": len(data)}, [data]


def read_tree(root: int, job: dict[str, Any], stdin: BinaryIO) -> _Answer:
    """The tree without content, and each file of it as [path, size, hash, whether its content follows].

    What the host has itself uploaded does not follow, nor does what is beyond `max_sent_bytes`.
    """
    known = set(json.loads(stdin.read(job["known"])))
    files: list[tuple[str, int, str, bool]] = []
    contents: list[bytes] = []
    sent = 0

    def note(path: str, data: bytes) -> bool:
        nonlocal sent
        digest = hashlib.sha256(data).hexdigest()
        follows = digest not in known and sent + len(data) <= job["max_sent_bytes"]
        if follows:
            sent += len(data)
            contents.append(data)
        files.append((path, len(data), digest, follows))
        return False

    tree = read_folder(root, TreeLimits(**job["limits"]), note)
    told = {"links": tree.links, "rejected": tree.rejected, "overflow": tree.overflow, "seen": sorted(tree.seen)}
    return {"files": files, "tree": told}, contents
