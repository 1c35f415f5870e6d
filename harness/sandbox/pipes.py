"""The pipes of a child process, served by the event loop without threads and without trusting the child.

A child that writes without end is read at a bounded rate and kept to a bounded size; a child that does not read its
input, or closes it, holds up nobody.
"""

import asyncio
import os

_CHUNK = 1 << 18
_PAUSE = 0.01
"""Seconds between reads once a capture is full: the child then blocks on its pipe instead of the loop on the child."""


class Capture:
    """Keeps the first `limit` bytes that arrive at the read end `fd`, which it owns, and drops the rest."""

    def __init__(self, fd: int, limit: int) -> None:
        self.truncated = False
        self._kept = bytearray()
        self._limit = limit
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._open = True
        self.ended = self._loop.create_future()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._readable)

    @property
    def data(self) -> bytes:
        return bytes(self._kept)

    def close(self) -> None:
        """Stop reading, whether or not the stream has ended. Harmless when called again."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        if self._pause is not None:
            self._pause.cancel()
        os.close(self._fd)
        if not self.ended.done():
            self.ended.set_result(None)

    def _readable(self) -> None:
        try:
            chunk = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.close()
            return
        room = self._limit - len(self._kept)
        self._kept += chunk[:room]
        if len(chunk) > room:
            self.truncated = True
            self._loop.remove_reader(self._fd)
            self._pause = self._loop.call_later(_PAUSE, self._resume)

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._fd, self._readable)


class Feed:
    """Writes `data` to the write end `fd`, which it owns, as fast as the child reads, then closes it."""

    def __init__(self, fd: int, data: bytes) -> None:
        self._fd = fd
        self._left = memoryview(data)
        self._loop = asyncio.get_running_loop()
        self._open = True
        os.set_blocking(fd, False)
        self._loop.add_writer(fd, self._writable)

    def close(self) -> None:
        """Stop writing. Harmless when called again."""
        if self._open:
            self._open = False
            self._loop.remove_writer(self._fd)
            os.close(self._fd)

    def _writable(self) -> None:
        try:
            self._left = self._left[os.write(self._fd, self._left[:_CHUNK]) :] if self._left else self._left
        except BlockingIOError:
            return
        except OSError:  # the child has closed its input
            self.close()
            return
        if not self._left:
            self.close()


async def readable(fd: int, timeout: float) -> bool:
    """Whether `fd` becomes readable within `timeout` seconds; for a pidfd, whether its process has ended."""
    loop = asyncio.get_running_loop()
    event = loop.create_future()

    def arrived() -> None:
        if not event.done():
            event.set_result(None)

    loop.add_reader(fd, arrived)
    try:
        done, _ = await asyncio.wait([event], timeout=timeout)
    finally:
        loop.remove_reader(fd)
    return bool(done)
