"""The way from a pod to the proxy: connections to a port on the pod's loopback, carried over one exec stream.

The far end runs in the keeper, out of reach of what the trial runs. The pod still has no network: the port is on its
loopback, and all that comes in there goes to one Unix socket on the host.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from harness.sandbox.base import SandboxError
from harness.sandbox.kubernetes_api import KubeApi
from harness.sandbox.kubernetes_pod import KEEPER
from harness.sandbox.kubernetes_stream import argv_of, packet
from harness.sandbox.pod_relay import frames

_CHUNK = 16 << 10
_READY = b"ready\n"

_log = logging.getLogger(__name__)


class Tunnel:
    """Open from `open` to `close`. `failure` says why it is open no more; connections are refused then."""

    def __init__(self, socket: Path) -> None:
        self.failure: str | None = None
        self._path = socket
        self._stack = AsyncExitStack()
        self._stream: aiohttp.ClientWebSocketResponse | None = None
        self._pump: asyncio.Task[None] | None = None
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._readers: set[asyncio.Task[None]] = set()

    async def open(self, api: KubeApi, pod: str, port: int) -> None:
        """Serve `port` in the pod.

        Raises:
            SandboxError: the port cannot be opened there.
        """
        self._stream = await self._stack.enter_async_context(api.exec_stream(pod, KEEPER, argv_of(api.kube.python)))
        try:
            data = packet({"op": "tunnel", "port": port})
            for start in range(0, len(data), _CHUNK):
                await self._stream.send_bytes(b"\0" + data[start : start + _CHUNK])
            said = b""
            async with asyncio.timeout(api.kube.request_timeout):
                while _READY not in said:
                    message = await self._stream.receive()
                    if message.type is not aiohttp.WSMsgType.BINARY:
                        raise SandboxError(f"port {port} cannot be opened in pod {pod}: {said[-300:]!r}")
                    said += message.data[1:]
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            await self._stack.aclose()
            raise SandboxError(f"port {port} of pod {pod} did not open: {type(error).__name__} {error}") from error
        except BaseException:
            await self._stack.aclose()
            raise
        self._pump = asyncio.create_task(self._run(self._stream))

    async def close(self) -> None:
        """End all connections. Harmless when called again."""
        tasks = [task for task in (self._pump, *self._readers) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.failure = self.failure or "it is closed"
        await self._stack.aclose()

    async def _run(self, stream: aiohttp.ClientWebSocketResponse) -> None:
        pending = b""
        try:
            async for message in stream:
                if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == b"\x01":
                    pending += message.data[1:]
                    for key, data in frames(pending):
                        pending = pending[8 + len(data) :]
                        await self._deliver(stream, key, data)
            self.failure = "the exec stream has ended"
        except (aiohttp.ClientError, OSError) as error:
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()

    async def _deliver(self, stream: aiohttp.ClientWebSocketResponse, key: int, data: bytes) -> None:
        if not data:
            if (writer := self._writers.pop(key, None)) is not None:
                writer.close()
            return
        if key not in self._writers:
            try:
                reader, self._writers[key] = await asyncio.open_unix_connection(self._path)
            except OSError as error:
                _log.debug("the proxy is not at %s: %s", self._path, error)
                await stream.send_bytes(_frame(key, b""))
                return
            task = asyncio.create_task(self._return(stream, key, reader))
            self._readers.add(task)
            task.add_done_callback(self._readers.discard)
        try:
            self._writers[key].write(data)
            await self._writers[key].drain()
        except OSError:
            self._writers.pop(key).close()
            await stream.send_bytes(_frame(key, b""))

    async def _return(self, stream: aiohttp.ClientWebSocketResponse, key: int, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(_CHUNK):
                await stream.send_bytes(_frame(key, data))
            await stream.send_bytes(_frame(key, b""))
        except (aiohttp.ClientError, OSError):
            return  # of the stream's end the pump tells
        finally:
            if (writer := self._writers.pop(key, None)) is not None:
                writer.close()


def _frame(key: int, data: bytes) -> bytes:
    return b"\0" + key.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data
