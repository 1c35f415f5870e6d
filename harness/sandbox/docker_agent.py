"""Reads and writes a sandbox's volumes from inside a container, for the host at the other end of its streams.

    python3 -I -S -B -c PROGRAM FOLDER...

No command of a trial ever runs in this container, and its system is read-only: what it says can be trusted as far as
the image can. What lies in the folders cannot, so all that is done there is done by the functions of tree.py, the same
ones that another backend uses on the host. Standard library only, Python >= 3.9, see `carried`.

A message is four bytes with the length of a JSON object, the object, and `size` bytes if it has that key. When the
input ends, so does the agent, and with it its container.
"""

import errno
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from harness.sandbox.tree import INSIDERS_DOING, TreeLimits, WorkspaceError, file_parts, open_folder, put, read_regular
from harness.sandbox.tree import read_tree as read_folder

_THEIRS = INSIDERS_DOING | {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors that whoever fills a workspace can bring about."""


def main(folders: list[str]) -> None:
    """Serve until the input ends."""
    os.umask(0o022)
    agent = Agent([os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in folders])
    disk = os.statvfs("/")
    agent.say({"python": sys.executable, "version": sys.version_info[:2], "free": disk.f_bavail * disk.f_frsize})
    while agent.serve():
        pass


class Agent:
    """Answers one request after the other, each about one of the open folders `roots`."""

    def __init__(self, roots: list[int]) -> None:
        self.roots = roots
        self.operations: dict[str, Callable[[dict[str, Any]], None]] = {
            "ping": lambda request: self.say({}),
            "read": self.read,
            "tree": self.read_tree,
            "put": self.put,
        }

    def serve(self) -> bool:
        """Answer the next request; False when there is none."""
        request = self.hear()
        if request is None:
            return False
        try:
            self.operations[request["do"]](request)
        except WorkspaceError as error:
            self.say({"fault": "workspace", "message": str(error)})
        except OSError as error:
            fault = "workspace" if error.errno in _THEIRS else "machine"
            self.say({"fault": fault, "message": f"{error.strerror}: {error.filename or request.get('path', '')}"})
        return True

    def read(self, request: dict[str, Any]) -> None:
        folders, name = file_parts(request["path"])
        with open_folder(self.roots[request["root"]], folders) as folder:
            self.say({}, read_regular(folder, name, request["max_bytes"]))

    def read_tree(self, request: dict[str, Any]) -> None:
        """Send each file's content, then the tree without content. What of it is kept is the host's to say."""

        def send(path: str, data: bytes) -> bool:
            self.say({"path": path}, data)
            return False

        tree = read_folder(self.roots[request["root"]], TreeLimits(**request["limits"]), send)
        told = {"links": tree.links, "rejected": tree.rejected, "overflow": tree.overflow, "seen": sorted(tree.seen)}
        self.say({"tree": told})

    def put(self, request: dict[str, Any]) -> None:
        """Take entries until one says `end`; after a failure the rest is read and forgotten."""
        root, fault = self.roots[request["root"]], None
        while True:
            entry = self.hear()
            if entry is None:
                raise SystemExit("the input ended within a request")
            if entry["kind"] == "end":
                break
            try:
                if fault is None:
                    content = entry["data"] if entry["kind"] == "file" else entry.get("target")
                    put(root, entry["kind"], entry["path"], content, entry.get("executable"))
            except (WorkspaceError, OSError) as error:
                fault = error
        if fault is not None:
            raise fault
        self.say({})

    def hear(self) -> dict[str, Any] | None:
        """The next message, its bytes under `data`; None at the end of the input."""
        length = sys.stdin.buffer.read(4)
        if len(length) < 4:
            return None
        message: dict[str, Any] = json.loads(sys.stdin.buffer.read(int.from_bytes(length, "big")))
        if "size" in message:
            message["data"] = sys.stdin.buffer.read(message["size"])
        return message

    def say(self, message: dict[str, Any], data: bytes | None = None) -> None:
        if data is not None:
            message = {**message, "size": len(data)}
        text = json.dumps(message).encode()
        sys.stdout.buffer.write(len(text).to_bytes(4, "big") + text + (data or b""))
        if "path" not in message:  # one of many follows; the last of them is no file
            sys.stdout.buffer.flush()
