"""One command in a container of its own, from its start to the certainty that nothing of it is left."""

import base64
import functools
import math
import os
import secrets
import select
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

from harness.sandbox.base import ExecResult, SandboxError, SandboxUnavailable
from harness.sandbox.bwrap_seccomp import MACHINES, compile_filter
from harness.sandbox.docker_engine import Engine, Stream, Wait
from harness.sandbox.docker_stream import STDERR, STDOUT, Frames, Kept

TIMED_OUT = 124
_CHUNK = 1 << 18
_PAUSE = 0.01
"""Seconds between reads once an output is full: the command then blocks on its pipe instead of the host on it."""
_LAST_WORDS = 0.1
_KILLED = 128
_SPARE_SECONDS = 30
"""How much longer than its deadline a container may live when nobody is left to end it."""

_ENTRY = Path(__file__).with_name("docker_entry.py").read_text(encoding="utf-8")


def entry_point(
    python: str, machine: str, argv: list[str], folder: str, memory_bytes: int, timeout: float
) -> list[str]:
    """The command with what prepares it, as the entry point of a container on a `machine` such as x86_64.

    Raises:
        SandboxUnavailable: no filter of system calls is known for that machine.
    """
    code = base64.b64encode(_filter(machine)).decode("ascii")
    seconds = math.ceil(timeout) + _SPARE_SECONDS
    return [python, "-I", "-S", "-B", "-c", _ENTRY, folder, str(memory_bytes), str(seconds), code, *argv]


@functools.cache
def _filter(machine: str) -> bytes:
    if machine not in MACHINES:
        raise SandboxUnavailable(f"no filter of system calls is known for {machine}; known are {', '.join(MACHINES)}")
    return compile_filter(MACHINES[machine])


class Command:
    """Call `run` once, in a thread; `cancel` from any thread, at any time."""

    def __init__(self, engine: Engine, body: dict[str, Any], stdin: bytes, timeout: float, output_bytes: int) -> None:
        self.name = f"testgrad-{secrets.token_hex(8)}-command"
        self._engine = engine
        self._body = body
        self._stdin = memoryview(stdin)
        self._timeout = timeout
        self._output = {STDOUT: Kept(output_bytes), STDERR: Kept(output_bytes)}
        self._cancelled = threading.Event()
        self._frames = Frames()
        self._waking = threading.Lock()
        self._wake_read = self._wake_write = -1

    def run(self) -> ExecResult:
        """Run the command and remove its container, whatever happens.

        Raises:
            SandboxError: the container could not be made, or the engine failed or was told to end it.
        """
        streams: list[Stream | Wait] = []
        gone = False
        with self._waking:
            self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        try:
            if self._cancelled.is_set():
                gone = True
                raise SandboxError("the command was cancelled before it began")
            self._engine.create(self.name, self._body)
            output = self._engine.attach(self.name, stdin=False, output=True)
            streams.append(output)
            feed = None
            if self._stdin:
                # By a connection of its own: closing one direction of a connection is not to be had through TLS.
                feed = self._engine.attach(self.name, stdin=True, output=False)
                streams.append(feed)
            wait = self._engine.wait(self.name)
            streams.append(wait)
            self._engine.start(self.name)
            timed_out = not self._serve(output, feed)
            if timed_out or self._cancelled.is_set():
                self._drain(output)
                output.close()  # before: an engine does not remove a container whose output nobody takes
                self._engine.remove(self.name)
            code = wait.exit_code()
            gone = True
            if self._cancelled.is_set():
                raise SandboxError("the sandbox was stopped while a command ran in it")
            return self._result(code, timed_out)
        finally:
            for stream in streams:
                stream.close()
            with self._waking:
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._wake_write = -1
            if not gone:
                self._engine.remove(self.name)

    def cancel(self) -> None:
        """Let `run` end as soon as it can."""
        self._cancelled.set()
        with self._waking:
            if self._wake_write >= 0:
                os.write(self._wake_write, b"!")

    def _result(self, code: int, timed_out: bool) -> ExecResult:
        over_limit = ""
        if code >= _KILLED and not timed_out:
            endings = self._engine.endings(self.name)
            if "kill" in endings:
                raise SandboxError("the command's container was killed from outside")
            over_limit = "total_memory_bytes" if "oom" in endings else ""
        out, err = self._output[STDOUT], self._output[STDERR]
        return ExecResult(
            exit_code=TIMED_OUT if timed_out else code,
            stdout=bytes(out.data),
            stderr=bytes(err.data),
            timed_out=timed_out,
            output_truncated=out.truncated or err.truncated,
            over_limit=over_limit,
        )

    def _serve(self, output: Stream, feed: Stream | None) -> bool:
        """Feed and read until the container ends; False at the deadline."""
        deadline = time.monotonic() + self._timeout
        sink = feed.socket if feed is not None else None
        for connection in filter(None, (output.socket, sink)):
            connection.setblocking(False)
        while not self._cancelled.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if sink is not None and not self._write(sink):
                _close_gently(sink)
                sink = None
            part = _receive(output.socket)
            if part == b"":
                return True
            if part is not None:
                self._keep(part)
                if not any(kept.truncated for kept in self._output.values()):
                    continue
                _await([self._wake_read], [], min(left, _PAUSE))
                continue
            _await([output.socket.fileno(), self._wake_read], [sink.fileno()] if sink is not None else [], left)
        return True

    def _keep(self, part: bytes) -> None:
        for stream, piece in self._frames.feed(part):
            if stream in self._output:
                self._output[stream].add(piece)

    def _write(self, sink: socket.socket) -> bool:
        """Write what the container takes; False when all is written, or it takes no more."""
        try:
            self._stdin = self._stdin[sink.send(self._stdin[:_CHUNK]) :]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return bool(self._stdin)

    def _drain(self, output: Stream) -> None:
        """Take what has arrived, for a moment: there may be no end of it."""
        end = time.monotonic() + _LAST_WORDS
        while time.monotonic() < end and (part := _receive(output.socket)):
            self._keep(part)


def _await(readers: list[int], writers: list[int], seconds: float) -> None:
    """Wait until one of the descriptors is ready; not by select(2), which knows the first thousand only."""
    poll = select.poll()
    for fd in readers:
        poll.register(fd, select.POLLIN)
    for fd in writers:
        poll.register(fd, select.POLLOUT)
    poll.poll(math.ceil(seconds * 1000))


def _receive(connection: socket.socket) -> bytes | None:
    """What has arrived; empty at the end, None if there is nothing now."""
    try:
        return connection.recv(_CHUNK)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None
    except ConnectionError:
        return b""


def _close_gently(connection: socket.socket) -> None:
    """End our direction: what was written before still arrives."""
    try:
        if isinstance(connection, ssl.SSLSocket):
            connection.settimeout(5.0)
            connection.unwrap()
        else:
            connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass
