"""A sandbox that keeps a record of what the machine did to it, and whose operations end in time whatever happens.

Whether a trial is the policy's doing is read off this record, not off the exception that reaches the end: an agent may
swallow one, and a library may raise another in its place.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any, Self, TypeVar

from harness.sandbox.base import ExecResult, Sandbox, SandboxConfig, SandboxError, create_sandbox
from harness.sandbox.tree import Tree, WorkspaceError
from harness.sandbox.waiting import CLOCK, Clock

_GRACE = 10.0
"""Seconds for an operation to end by itself, and again after it was cancelled."""

_MAX_WORD_BYTES = 128 << 10  # the kernel's limit for one word of a command; all together may have eight times that
_STOP_TRIES = 5
_TICK = 0.05

_log = logging.getLogger(__name__)
_stopping: set[asyncio.Task[None]] = set()
"""What sees to it that sandboxes stop whose trial has ended."""

T = TypeVar("T")


class GuardedSandbox(Sandbox):
    """`inner`, with every operation bounded from outside and its failures remembered.

    What the caller or the code inside is to blame for (WorkspaceError, a command that is none) passes through. Any
    other error is the machine's: the first one stays in `failure`, and each is raised as SandboxError. A command that
    is cancelled long after its own deadline is a failure too.
    """

    def __init__(self, inner: Sandbox, *, hang_sec: float, stop_sec: float) -> None:
        super().__init__(inner.config)
        self.inner = inner
        self.failure: str | None = None
        self.stop_failure: str | None = None
        self._hang_sec = hang_sec
        self._stop_sec = stop_sec
        self._clock = Clock()
        self._stage_end: float | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()  # a start that fails halfway may have made something
            raise
        return self

    @classmethod
    def require_isolation(cls, config: SandboxConfig) -> None:
        raise NotImplementedError("a guard has no backend of its own; ask the guarded one")

    @property
    def python(self) -> str:
        return self.inner.python

    @contextmanager
    def stage(self, seconds: float) -> Iterator[None]:
        """Within this context all operations together end in so many seconds, not counting what they wait in queues."""
        self._stage_end = self._clock.now() + seconds
        try:
            yield
        finally:
            self._stage_end = None

    async def start(self) -> None:
        await self._bounded("start", self.inner.start(), 0.0)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        writable: bool = True,
    ) -> ExecResult:
        _check_words([*argv, *(word for item in (env or {}).items() for word in item)])
        command = self.inner.exec(argv, timeout=timeout, cwd=cwd, env=env, stdin=stdin, writable=writable)
        return await self._bounded("exec", command, timeout, cancel_at_once=True)

    async def mount_read_only(self, mount: str, files: Mapping[str, bytes]) -> None:
        await self._bounded("mount_read_only", self.inner.mount_read_only(mount, files), 0.0)

    async def mount_runtime(self, host_dir: Path, mount: str) -> None:
        await self._bounded("mount_runtime", self.inner.mount_runtime(host_dir, mount), 0.0)

    async def connect_proxy(self, socket: Path) -> str:
        return await self._bounded("connect_proxy", self.inner.connect_proxy(socket), 0.0)

    async def write_files(self, files: Mapping[str, bytes | None]) -> None:
        await self._bounded("write_files", self.inner.write_files(files), 0.0)

    async def read_file(self, relpath: str, max_bytes: int) -> bytes:
        return await self._bounded("read_file", self.inner.read_file(relpath, max_bytes), 0.0)

    async def read_tree(self, keep: Callable[[str, bytes], bool]) -> Tree:
        return await self._bounded("read_tree", self.inner.read_tree(keep), 0.0)

    async def upload(self, src_dir: Path, relpath: str = ".") -> None:
        await self._bounded("upload", self.inner.upload(src_dir, relpath), 0.0)

    def source_moved(self, src_dir: Path, place: Path) -> None:
        self.inner.source_moved(src_dir, place)

    async def stop(self) -> None:
        """Stop `inner`. Not even cancellation shortens this, and a failure is only remembered.

        What takes too long goes on in the background, and what fails is tried again there: see `finish_stops`.
        """
        task = asyncio.create_task(self.inner.stop())
        task.add_done_callback(_retrieve)
        cancelled = await outlast(task, self._stop_sec)
        if not task.done():
            self.stop_failure = f"stop takes more than {self._stop_sec:.0f} s"
        elif task.cancelled():
            self.stop_failure = "stop was cancelled"
        elif (error := task.exception()) is not None:
            self.stop_failure = f"stop failed: {type(error).__name__}: {error}"
        if self.stop_failure:
            _log.warning("%s; it is tried again in the background", self.stop_failure)
            _keep(asyncio.create_task(_stop_again(self.inner, task, self._stop_sec)))
        if cancelled:
            raise asyncio.CancelledError

    async def _bounded(
        self, what: str, operation: Coroutine[Any, Any, T], own_limit: float, cancel_at_once: bool = False
    ) -> T:
        """The result of `operation`, which has a time limit of its own and `hang_sec` more.

        Cancelling lets it end by itself for a moment, unless `cancel_at_once`: it may be a thread, which goes on anyway
        and must not write into a sandbox that is being removed.
        """
        started = self._clock.now()
        limit = own_limit + self._hang_sec
        if self._stage_end is not None:
            limit = self._stage_end - started
        context = copy_context()
        context.run(CLOCK.set, self._clock)
        task = asyncio.get_running_loop().create_task(operation, context=context)
        task.add_done_callback(_retrieve)
        try:
            while not task.done() and (left := started + limit - self._clock.now()) > 0:
                await asyncio.wait({task}, timeout=max(left, _TICK))
        except asyncio.CancelledError:
            if self._clock.now() > started + own_limit + _GRACE:
                self._broken(f"{what} went on after its own limit of {own_limit:.0f} s")
            if not cancel_at_once:
                await outlast(task, _GRACE)
            raise
        finally:
            if not task.done():
                task.cancel()
                if await outlast(task, _GRACE):
                    raise asyncio.CancelledError
        return self._result(what, task, limit)

    def _result(self, what: str, task: "asyncio.Task[T]", limit: float) -> T:
        if not task.done() or task.cancelled():
            raise self._broken(f"{what} did not end within {max(limit, 0.0):.0f} s")
        try:
            return task.result()
        except (ValueError, TypeError):
            raise  # a path, a command, a file that the caller or the code inside chose badly
        except Exception as error:
            raise self._broken(f"{what} failed: {type(error).__name__}: {error}") from error

    def _broken(self, message: str) -> SandboxError:
        self.failure = self.failure or message
        return SandboxError(message)


def guarded(config: SandboxConfig, *, hang_sec: float, stop_sec: float) -> GuardedSandbox:
    """A sandbox of the configured backend under guard, not started; times are seconds.

    A command may go on for `hang_sec` beyond its own time limit, any other operation for as long altogether.
    """
    return GuardedSandbox(create_sandbox(config), hang_sec=hang_sec, stop_sec=stop_sec)


async def finish_stops(timeout: float = 60.0) -> None:
    """Wait for the stops that still go on in the background of this event loop, at most so many seconds."""
    loop = asyncio.get_running_loop()
    if pending := [task for task in _stopping if task.get_loop() is loop]:
        await asyncio.wait(pending, timeout=timeout)


async def _stop_again(sandbox: Sandbox, stop: "asyncio.Task[None]", seconds: float) -> None:
    """Give `stop` as much time again, then try anew, some times."""
    for failures in range(_STOP_TRIES):
        await asyncio.wait({stop}, timeout=seconds)
        if stop.done() and not stop.cancelled() and stop.exception() is None:
            return
        stop.cancel()
        await asyncio.sleep(min(2.0**failures, seconds))
        stop = asyncio.create_task(sandbox.stop())
        stop.add_done_callback(_retrieve)
    await asyncio.wait({stop}, timeout=seconds)
    if not stop.done() or stop.cancelled() or stop.exception() is not None:
        _log.error("a sandbox of backend %s cannot be stopped; `testgrad clean` finds it", sandbox.config.backend)


def _retrieve(task: "asyncio.Task[Any]") -> None:
    """Look at the error of a task whose caller has gone, which asyncio would complain about."""
    if not task.cancelled():
        task.exception()


def _keep(task: "asyncio.Task[None]") -> None:
    _stopping.add(task)
    task.add_done_callback(_stopping.discard)


async def outlast(task: "asyncio.Task[Any]", seconds: float) -> bool:
    """Wait for `task`, even through cancellations; whether there was one."""
    loop = asyncio.get_running_loop()
    end, cancelled = loop.time() + seconds, False
    while not task.done() and (left := end - loop.time()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


def _check_words(words: Sequence[str]) -> None:
    """Refuse a command that no machine could start: its words may well be the policy's."""
    if not all(isinstance(word, str) for word in words):
        raise WorkspaceError("a command is a list of texts, and so is its environment")
    sizes = [len(os.fsencode(word)) + 1 for word in words]
    if max(sizes, default=0) > _MAX_WORD_BYTES or sum(sizes) > 8 * _MAX_WORD_BYTES:
        raise WorkspaceError(f"a command of {sum(sizes)} bytes is too long; pass long text through a file or its input")
