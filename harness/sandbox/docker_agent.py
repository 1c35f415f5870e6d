"""Reads and writes a sandbox's volumes from inside a container, for the host at the other end of its streams.

    python3 -I -S -B -c THIS_FILE TREE_SOURCE FOLDER...

No command of a trial ever runs in this container, and its system is read-only: what it says can be trusted as far as
the image can. What lies in the folders cannot, so all that is done there is done by the functions of tree.py, whose
text comes as an argument: the same ones that another backend uses on the host. Standard library only, Python >= 3.9.

A message is four bytes with the length of a JSON object, the object, and `size` bytes if it has that key. When the
input ends, so does the agent, and with it its container.
"""

import __future__

import errno
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG}
"""Errors that whoever fills a workspace can bring about."""


def main(argv: "list[str]") -> None:
    """Serve until the input ends."""
    source, *folders = argv
    os.umask(0o022)
    agent = Agent(load_tree(source), [os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in folders])
    disk = os.statvfs("/")
    agent.say({"python": sys.executable, "version": sys.version_info[:2], "free": disk.f_bavail * disk.f_frsize})
    while agent.serve():
        pass


def load_tree(source: str) -> Any:
    """The module tree.py. It needs of pydantic only that values can be put into a class of limits."""

    class BaseModel:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(values)

    stand_in: Any = types.ModuleType("pydantic")
    stand_in.BaseModel, stand_in.ConfigDict, stand_in.Field = BaseModel, dict, lambda **_: None
    module: Any = types.ModuleType("tree")
    sys.modules.update({"pydantic": stand_in, "tree": module})
    # annotations stay unread: an older Python does not know all that they say
    code = compile(source, "tree.py", "exec", flags=__future__.annotations.compiler_flag)
    exec(code, module.__dict__)
    return module


class Agent:
    """Answers one request after the other, each about one of the open folders `roots`."""

    def __init__(self, tree: Any, roots: "list[int]") -> None:
        self.tree = tree
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
        except self.tree.WorkspaceError as error:
            self.say({"fault": "workspace", "message": str(error)})
        except OSError as error:
            fault = "workspace" if error.errno in _FULL else "machine"
            self.say({"fault": fault, "message": f"{error.strerror}: {error.filename or request.get('path', '')}"})
        return True

    def read(self, request: "dict[str, Any]") -> None:
        folders, name = self.tree.file_parts(request["path"])
        with self.tree.open_folder(self.roots[request["root"]], folders) as folder:
            self.say({}, self.tree.read_regular(folder, name, request["max_bytes"]))

    def read_tree(self, request: "dict[str, Any]") -> None:
        """Send each file's content, then the tree without content. What of it is kept is the host's to say."""

        def send(path: str, data: bytes) -> bool:
            self.say({"path": path}, data)
            return False

        tree = self.tree.read_tree(self.roots[request["root"]], self.tree.TreeLimits(**request["limits"]), send)
        told = {"links": tree.links, "rejected": tree.rejected, "overflow": tree.overflow, "seen": sorted(tree.seen)}
        self.say({"tree": told})

    def put(self, request: "dict[str, Any]") -> None:
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
                    self.put_entry(root, entry)
            except (self.tree.WorkspaceError, OSError) as error:
                fault = error
        if fault is not None:
            raise fault
        self.say({})

    def put_entry(self, root: int, entry: "dict[str, Any]") -> None:
        kind, path = entry["kind"], entry["path"]
        if kind == "folder":
            with self.tree.open_folder(root, self.tree.relative_parts(path), create=True):
                return
        folders, name = self.tree.file_parts(path)
        with self.tree.open_folder(root, folders, create=kind != "gone") as folder:
            if kind == "file":
                self.tree.write_regular(folder, name, entry["data"], executable=entry["executable"])
            else:
                self.tree.remove_regular(folder, name)
            if kind == "link":
                os.symlink(entry["target"], name, dir_fd=folder)

    def hear(self) -> "dict[str, Any] | None":
        """The next message, its bytes under `data`; None at the end of the input."""
        length = sys.stdin.buffer.read(4)
        if len(length) < 4:
            return None
        message: dict[str, Any] = json.loads(sys.stdin.buffer.read(int.from_bytes(length, "big")))
        if "size" in message:
            message["data"] = sys.stdin.buffer.read(message["size"])
        return message

    def say(self, message: "dict[str, Any]", data: "bytes | None" = None) -> None:
        if data is not None:
            message = {**message, "size": len(data)}
        text = json.dumps(message).encode()
        sys.stdout.buffer.write(len(text).to_bytes(4, "big") + text + (data or b""))
        if "path" not in message:  # one of many follows; the last of them is no file
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
