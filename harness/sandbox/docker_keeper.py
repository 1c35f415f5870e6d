"""The container that keeps a sandbox's volumes mounted, and the conversation with the agent in it.

A volume in memory lasts as long as a container has it mounted. The keeper is that container; commands run in others,
which come and go. Its volumes are its own (anonymous, in Docker's words), and its input is the connection to the host:
when the host's process dies, however it dies, the agent ends, and the engine removes container and volumes by itself.
"""

import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.sandbox.base import SandboxError, SandboxUnavailable
from harness.sandbox.carried import program
from harness.sandbox.docker_engine import API_TIMEOUT, Engine, EngineError, Stream
from harness.sandbox.docker_stream import STDOUT, Frames
from harness.sandbox.sieve import Sieve
from harness.sandbox.source import source_content, source_entries
from harness.sandbox.tree import Tree, TreeLimits, WorkspaceError

_AGENT = program("docker_agent", "tree")
_OLDEST_PYTHON = (3, 9)
_OWN_BYTES = 256 << 20  # memory for the agent itself
_CHUNK = 1 << 18
_MAX_MESSAGE = 64 << 20


class Volume:
    """A file system in memory: where the keeper mounts it, its size, and who may enter. `name` is the engine's."""

    def __init__(self, place: str, size: int, files: int, mode: str) -> None:
        self.place, self.size, self.files, self.mode = place, size, files, mode
        self.name = ""

    def mount(self, uid: int, labels: Mapping[str, str]) -> dict[str, Any]:
        options = f"size={self.size},nr_inodes={self.files},uid={uid},gid={uid},mode={self.mode},nosuid,nodev"
        return {
            "Type": "volume",
            "Target": self.place,
            "VolumeOptions": {
                "NoCopy": True,
                "Labels": dict(labels),
                "DriverConfig": {"Name": "local", "Options": {"type": "tmpfs", "device": "tmpfs", "o": options}},
            },
        }


class Keeper:
    """Blocking; one conversation at a time. Call `start` once and `close` in any case, from any thread.

    Whatever fails here is the machine's fault, except WorkspaceError.
    """

    def __init__(self, engine: Engine, volumes: list[Volume]) -> None:
        self.engine = engine
        self.volumes = volumes
        self.name = f"testgrad-{secrets.token_hex(8)}-keeper"
        self.python = ""
        self._stream: Stream | None = None
        self._frames = Frames()
        self._heard = bytearray()
        self._complaint = bytearray()
        self._busy = threading.Lock()
        self._closed = False

    def start(self, body: dict[str, Any], python: str, uid: int, labels: Mapping[str, str]) -> None:
        """Start the agent. `body` is how every container of the sandbox is confined.

        Raises:
            SandboxUnavailable: the image's Python cannot run the agent.
        """
        host_config = {
            **body["HostConfig"],
            "Memory": (memory := _OWN_BYTES + sum(volume.size for volume in self.volumes)),
            "MemorySwap": memory,
            "PidsLimit": 16,
            "OomScoreAdj": 0,
            "Ulimits": [],  # it writes what the host sends, for as long as the sandbox lives
            "Mounts": [volume.mount(uid, labels) for volume in self.volumes],
        }
        places = [volume.place for volume in self.volumes]
        streams = {"OpenStdin": True, "StdinOnce": True, "AttachStdin": True}
        entry = [python, "-I", "-S", "-B", "-c", _AGENT, *places]
        try:
            self.engine.create(self.name, {**body, **streams, "Entrypoint": entry, "HostConfig": host_config})
            names = self.engine.volumes_of(self.name)
            for volume in self.volumes:
                volume.name = names[volume.place]
            self._stream = self.engine.attach(self.name, stdin=True, output=True)
            self._stream.socket.settimeout(API_TIMEOUT)
            self.engine.start(self.name)
            self._greet(python)
            if self._closed:
                raise SandboxError("the sandbox was stopped while it started")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the container and its volumes. Harmless when called again."""
        self._closed = True
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self.engine.remove(self.name)

    def remove_volumes(self) -> None:
        """Remove what a keeper that ended too early has left, or what commands have made anew in its place."""
        for volume in self.volumes:
            if volume.name:
                self.engine.remove_volume(volume.name)

    def ping(self) -> None:
        """Raise SandboxError unless the agent answers, and thus the volumes are what they were."""
        with self._conversation():
            self._say({"do": "ping"})
            self._answer()

    def read_file(self, path: str, max_bytes: int) -> bytes:
        with self._conversation():
            self._say({"do": "read", "root": 0, "path": path, "max_bytes": max_bytes})
            return self._answer()[1]

    def read_tree(self, limits: TreeLimits, keep: Callable[[str, bytes], bool]) -> Tree:
        with self._conversation():
            self._say({"do": "tree", "root": 0, "limits": limits.model_dump()})
            sieve = Sieve(limits, keep)
            while "tree" not in (told := self._answer())[0]:
                sieve.add(told[0]["path"], told[1])
        return sieve.tree(told[0]["tree"])

    def put(self, root: int, entries: Iterable[tuple[dict[str, Any], bytes | None]]) -> None:
        """Write `entries`, see `file_entry` and its like, into the volume number `root`.

        Raises:
            WorkspaceError: what stands there does not allow it, or there is no room.
        """
        with self._conversation():
            self._say({"do": "put", "root": root})
            pending = bytearray()
            try:
                for entry, data in entries:
                    pending += _message(entry, data)
                    if len(pending) >= _CHUNK:
                        self._send(pending)
                        pending = bytearray()
            finally:  # also when an entry cannot be had: the agent waits for the end
                pending += _message({"kind": "end"})
                self._send(pending)
                self._answer()

    def _greet(self, python: str) -> None:
        try:
            hello, _ = self._answer()
        except SandboxError as error:
            raise SandboxUnavailable(
                f"{python} of the image cannot run the agent: {error}. Mend: choose an image with a Python >= 3.9 on "
                "its PATH, or set sandbox.python"
            ) from error
        if tuple(hello["version"]) < _OLDEST_PYTHON:
            raise SandboxUnavailable(f"{python} of the image is {hello['version']}; 3.9 is needed: set sandbox.python")
        self.python = str(hello["python"])
        self.engine.free_bytes = int(hello["free"])

    @contextmanager
    def _conversation(self) -> Iterator[None]:
        """Holds the keeper for one request and its answers; what breaks off in between breaks the keeper."""
        with self._busy:
            try:
                yield
            except (WorkspaceError, EngineError):  # an answer like another
                raise
            except BaseException:
                self._break()
                raise

    def _break(self) -> None:
        """Nothing said afterwards can be matched with what was asked: the keeper is lost."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _say(self, message: dict[str, Any]) -> None:
        self._send(_message(message))

    def _send(self, data: bytes | bytearray) -> None:
        if self._stream is None:
            raise SandboxError("the sandbox's keeper is gone")
        try:
            self._stream.socket.sendall(data)
        except OSError as error:
            raise SandboxError(f"the sandbox's keeper is gone: {error}") from error

    def _answer(self) -> tuple[dict[str, Any], bytes]:
        """The next message of the agent.

        Raises:
            WorkspaceError: it says that what lies in the folder is to blame.
            SandboxError: it says that something else is, or says nothing.
        """
        length = int.from_bytes(self._read(4), "big")
        if length > _MAX_MESSAGE:
            raise SandboxError(f"the sandbox's agent sent a message of {length} bytes, which it never does")
        message: dict[str, Any] = json.loads(self._read(length))
        data = self._read(message["size"]) if "size" in message else b""
        if message.get("fault") == "workspace":
            raise WorkspaceError(message["message"])
        if "fault" in message:
            raise EngineError(f"the sandbox's agent failed: {message['message']}")
        return message, data

    def _read(self, size: int) -> bytes:
        while len(self._heard) < size:
            if self._stream is None:
                raise SandboxError("the sandbox's keeper is gone")
            try:
                part = self._stream.socket.recv(_CHUNK)
            except (OSError, ssl.SSLError) as error:
                raise SandboxError(f"the sandbox's keeper does not answer: {error}") from error
            if not part:
                complaint = self._complaint.decode(errors="replace").strip()[-500:]
                raise SandboxError(f"the sandbox's keeper has ended: {complaint or 'it gave no reason'}")
            for stream, piece in self._frames.feed(part):
                if stream == STDOUT:
                    self._heard += piece
                else:
                    self._complaint = (self._complaint + piece)[-4096:]
        data = bytes(self._heard[:size])
        del self._heard[:size]
        return data


def file_entry(path: str, data: bytes | None, executable: bool | None = None) -> tuple[dict[str, Any], bytes | None]:
    """A file to write, or with None to remove; `executable=None` keeps what the replaced file was."""
    if data is None:
        return {"kind": "gone", "path": path}, None
    return {"kind": "file", "path": path, "executable": executable}, data


def tree_entries(source: Path, at: str) -> Iterator[tuple[dict[str, Any], bytes | None]]:
    """All that lies in the trusted folder `source`, to be written below `at`; raises as `source_entries` does."""
    for kind, path, file in source_entries(source, at):
        content, executable = source_content(kind, file)
        if isinstance(content, bytes):
            yield file_entry(path, content, executable)
        else:
            yield {"kind": kind, "path": path, "target": content}, None


def _message(message: dict[str, Any], data: bytes | None = None) -> bytes:
    if data is not None:
        message = {**message, "size": len(data)}
    text = json.dumps(message).encode()
    return len(text).to_bytes(4, "big") + text + (data or b"")
