"""A Unix socket through which one sandbox reaches one session, and no port of the host."""

import asyncio
import socket
from collections.abc import Callable

from aiohttp import web

from harness.sandbox.leftovers import make_base, remove_base

MAX_CONNECTIONS = 64
"""Connections of one sandbox at a time; further ones wait. Whoever is inside may open as many as it likes, and each
would cost the host a descriptor, which all trials share."""

_BACKLOG = 64
_PAUSE = 0.1
"""Seconds until the next look whether there is room for a connection again."""


class Doorway:
    """`server` listening at `path`, until `close`.

    The socket lies alone in a folder, so that the folder can be shown to a sandbox. That folder and the socket are open
    to every user, but the folder above is private: the sandbox's backend opens that one to the sandbox's user. Like a
    sandbox's own directory it is removed by the next sweep should this process die.
    """

    def __init__(self, server: Callable[[], asyncio.BaseProtocol]) -> None:
        self._server = server
        self._base, self._lock = make_base(None)
        try:
            folder = self._base / "run"
            folder.mkdir()
            folder.chmod(0o755)
            self.path = folder / "proxy.sock"
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.setblocking(False)
            # Through the descriptor: the path itself may be longer than an address can be.
            self.address = f"/proc/self/fd/{self._lock}/run/proxy.sock"
            self._listener.bind(self.address)
            self.path.chmod(0o666)
            self._listener.listen(_BACKLOG)
        except BaseException:
            remove_base(self._base, self._lock)
            raise
        self._connections: set[asyncio.Transport] = set()
        self._accepting = asyncio.create_task(self._accept())

    def leads_here(self, request: web.Request) -> bool:
        """Whether `request` came in by this socket."""
        return request.get_extra_info("sockname") == self.address

    async def close(self) -> None:
        """Refuse connections from now on and remove the socket. Those that are open go on, to be told so."""
        self._accepting.cancel()
        await asyncio.wait({self._accepting})
        self._listener.close()
        remove_base(self._base, self._lock)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._connections = {transport for transport in self._connections if not transport.is_closing()}
            if len(self._connections) >= MAX_CONNECTIONS:
                await asyncio.sleep(_PAUSE)
                continue
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:  # the process is short of descriptors
                await asyncio.sleep(_PAUSE)
                continue
            transport, _ = await loop.connect_accepted_socket(self._server, connection)
            self._connections.add(transport)
