"""Carries connections from a port on the sandbox's loopback to the proxy's Unix socket, while a command runs.

    python -I -S forwarder.py SOCKET [COMMAND ...]

Without a command it serves until it is killed. With one it becomes that command (same process, same exit code) once the
port is open, and a child of nobody serves for as long as the command lives.

This file runs inside, where hostile code may do to it whatever it likes; it knows no secret and can do nothing that the
command could not do itself. It needs a Python >= 3.9 and its standard library alone.
"""

import os
import resource
import selectors
import signal
import socket
import sys

PROXY_PORT = 8377
"""Where the proxy is found on the loopback inside every sandbox."""

PROXY_ORIGIN = f"http://127.0.0.1:{PROXY_PORT}"

FORWARDER_PATH = "/opt/testgrad/forwarder.py"
"""Where this file is shown inside."""

SOCKET_FOLDER = "/run/testgrad"
SOCKET_PATH = "/run/testgrad/proxy.sock"
"""Where the socket of the sandbox's session is shown inside; the folder is the one that holds it on the host."""

CHECK_SCRIPT = f"""\
import socket
with socket.create_connection(("127.0.0.1", {PROXY_PORT}), 10) as proxy:
    proxy.settimeout(10)
    proxy.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    raise SystemExit(0 if proxy.recv(1) else "the proxy closed the connection without an answer")
"""
"""For Python inside: fails unless something answers at the far end. Run before the agent may run anything."""

CANNOT_FORWARD = 125
"""Exit code when the port cannot be opened; a command that cannot be started gives 126 or 127, as from a shell."""

_CHUNK = 1 << 16
_SPARE_FILES = 16  # descriptors that are no connection's


def main(argv: "list[str]") -> int:
    """Serve, or serve beside a command."""
    path, *command = argv
    try:
        listener = socket.create_server(("127.0.0.1", PROXY_PORT), backlog=128, reuse_port=True)
        if not command:
            serve(listener, path)
        start_beside(listener, path)
    except OSError as error:
        print(f"forwarder: port {PROXY_PORT} cannot be served: {error}", file=sys.stderr)
        return CANNOT_FORWARD
    return become(command)


def start_beside(listener: socket.socket, path: str) -> None:
    """Serve in a grandchild, which the command does not find among its own children, until this process ends."""
    command = os.pidfd_open(os.getpid())
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(command)
        listener.close()
        return
    try:
        if os.fork() == 0:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):  # the command's: a reader of its output waits until all have closed them
                os.dup2(null, fd)
            serve(listener, path, command)
    finally:
        os._exit(0)


def become(command: "list[str]") -> int:
    """Replace this process; returns only the exit code of a failure."""
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and an exec would hand that on
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except (FileNotFoundError, NotADirectoryError):
        print(f"{command[0]}: not found", file=sys.stderr)
        return 127
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 126


def serve(listener: socket.socket, path: str, until: int = -1) -> None:
    """Relay every connection to the Unix socket at `path` until the pidfd `until` tells that its process has ended."""
    relay = Relay(listener, path)
    if until >= 0:
        relay.selector.register(until, selectors.EVENT_READ)
    while True:
        for key, events in relay.selector.select():
            if key.fd == until:
                return
            if key.fileobj is listener:
                relay.accept()
            elif key.data.is_open:
                key.data.move(key.fileobj, events)
        relay.admit()


class Relay:
    """All connections. Beyond as many as there are descriptors for, new ones wait in the listener's queue."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self.selector = selectors.DefaultSelector()
        self.path = path
        self.links = 0
        self._listener = listener
        self._listening = False
        self._most = max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES) // 2)
        listener.setblocking(False)
        self.admit()

    def admit(self) -> None:
        """Look for new connections as long as there is room for one."""
        wanted = self.links < self._most
        if wanted and not self._listening:
            self.selector.register(self._listener, selectors.EVENT_READ)
        elif self._listening and not wanted:
            self.selector.unregister(self._listener)
        self._listening = wanted

    def accept(self) -> None:
        """Take one connection, and drop it if the proxy takes none: it is gone, or its session was closed."""
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        proxy = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        proxy.setblocking(False)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            proxy.connect(self.path)
        except OSError:
            client.close()
            proxy.close()
            return
        Link(self, client, proxy)


class Link:
    """One connection: two directions, each with at most one chunk on its way.

    What an end has closed for writing is closed for writing at the other end too, once all before it has arrived; so
    half-closed connections work, and a client that is gone is seen by the proxy at once.
    """

    def __init__(self, relay: Relay, client: socket.socket, proxy: socket.socket) -> None:
        self.is_open = True
        self._relay = relay
        self._other = {client: proxy, proxy: client}
        self._held = {client: b"", proxy: b""}  # what has been read from the one and not yet taken by the other
        self._reading = {client: True, proxy: True}
        self._watched = {client: 0, proxy: 0}
        relay.links += 1
        self._watch()

    def move(self, end: socket.socket, events: int) -> None:
        """Carry what `end` has to say, or can take now."""
        try:
            if events & selectors.EVENT_READ:
                self._read(end)
            if events & selectors.EVENT_WRITE:
                self._write(self._other[end])
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # one end broke off: so does the other
            self._close()
            return
        if not any(self._reading.values()) and not any(self._held.values()):
            self._close()
        else:
            self._watch()

    def _read(self, source: socket.socket) -> None:
        chunk = source.recv(_CHUNK)
        if chunk:
            self._held[source] = chunk
        else:
            self._reading[source] = False
        self._write(source)

    def _write(self, source: socket.socket) -> None:
        sink, held = self._other[source], self._held[source]
        if held:
            try:
                self._held[source] = held[sink.send(held) :]
            except (BlockingIOError, InterruptedError):
                return
        if not self._reading[source] and not self._held[source]:
            sink.shutdown(socket.SHUT_WR)

    def _watch(self) -> None:
        for end, other in self._other.items():
            events = selectors.EVENT_READ if self._reading[end] and not self._held[end] else 0
            events |= selectors.EVENT_WRITE if self._held[other] else 0
            before, self._watched[end] = self._watched[end], events
            if events and before:
                if events != before:
                    self._relay.selector.modify(end, events, self)
            elif events:
                self._relay.selector.register(end, events, self)
            elif before:
                self._relay.selector.unregister(end)

    def _close(self) -> None:
        self.is_open = False
        self._relay.links -= 1
        for end, watched in self._watched.items():
            if watched:
                self._relay.selector.unregister(end)
            end.close()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
