"""The pod's end of the way to the proxy, see `kubernetes_tunnel` for the other. Runs in the pod, see `pod_main`."""

import os
import select
import socket
from collections.abc import Iterator
from typing import Any

from harness.sandbox.pod_main import write_all

_CHUNK = 1 << 16
_MAX_CONNECTIONS = 256


def serve(port: int) -> None:
    """In the keeper: serve `port` on the pod's loopback, and carry each connection as frames over stdin and stdout.

    A frame is the connection's number (4 bytes), a length (4 bytes) and so many bytes; none of them: end of stream.
    Ends when stdin does.
    """
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    os.write(1, b"ready\n")
    connections: dict[int, socket.socket] = {}
    number = 0
    pending = b""
    while True:
        sources: list[Any] = [0, *([listener] if len(connections) < _MAX_CONNECTIONS else []), *connections.values()]
        for source in select.select(sources, [], [])[0]:
            if source == 0:
                part = os.read(0, _CHUNK)
                if not part:
                    return
                pending += part
                for key, data in frames(pending):
                    pending = pending[8 + len(data) :]
                    deliver(connections, key, data)
            elif source is listener:
                number += 1
                connections[number] = listener.accept()[0]
                connections[number].settimeout(10.0)
            else:
                key = next((k for k, v in connections.items() if v is source), 0)
                if key:
                    carry(connections, key)


def frames(pending: bytes) -> "Iterator[tuple[int, bytes]]":
    while len(pending) >= 8:
        size = int.from_bytes(pending[4:8], "big")
        if len(pending) < 8 + size:
            return
        yield int.from_bytes(pending[:4], "big"), pending[8 : 8 + size]
        pending = pending[8 + size :]


def deliver(connections: "dict[int, socket.socket]", key: int, data: bytes) -> None:
    """Pass on what the proxy sent; a reader that does not read for long is cut off, as it would hold up the others."""
    connection = connections.get(key)
    if connection is None:
        return
    try:
        if data:
            connection.sendall(data)
            return
    except OSError:
        write_frame(key, b"")
    connection.close()
    del connections[key]


def carry(connections: "dict[int, socket.socket]", key: int) -> None:
    try:
        data = connections[key].recv(_CHUNK)
    except OSError:
        data = b""
    write_frame(key, data)
    if not data:
        connections.pop(key).close()


def write_frame(key: int, data: bytes) -> None:
    write_all(key.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)
