"""One command under bwrap, from its start to the certainty that nothing of it lives.

bwrap is held at the gate (`--block-fd`) until the process id of the sandbox's init is known and a pidfd is open on it.
Killing that one process kills the whole pid namespace, and bwrap, its parent, ends only when the namespace is empty.
So when bwrap has been waited for, all is over, and no orphan is left for the host's init to reap.
"""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Coroutine, Sequence

from harness.sandbox.base import ExecResult, SandboxError
from harness.sandbox.bwrap_seccomp import open_filter
from harness.sandbox.owner import mark
from harness.sandbox.pipes import Capture, Feed, readable

_SETUP_TIMEOUT = 60.0
_KILL_TIMEOUT = 10.0
_DRAIN_TIMEOUT = 2.0

TIMED_OUT = 124
"""Exit code of a command that was killed at its deadline, as of timeout(1)."""


class BwrapProcess:
    """A started bwrap, held at its gate. Call `hold`, then `run`, each once, and `end` in any case.

    `uid` is the host user to become first; None stays the present one. Must be made inside a running event loop.
    """

    def __init__(
        self, bwrap: str, options: Sequence[str], command: Sequence[str], uid: int | None, output_bytes: int
    ) -> None:
        self._init = -1  # pidfd of the sandbox's init
        self._told = b""  # what bwrap has said of it
        self._fds: set[int] = set()
        stdin, feed = self._pipe()
        capture_out, out = self._pipe()
        capture_err, err = self._pipe()
        seccomp = open_filter()
        self._fds.add(seccomp)
        self._info, info = self._pipe()
        gate, self._gate = self._pipe()
        try:
            self._child = subprocess.Popen(
                [
                    *(bwrap, *options, "--seccomp", str(seccomp)),
                    *("--info-fd", str(info), "--block-fd", str(gate), "--", *command),
                ],
                stdin=stdin,
                stdout=out,
                stderr=err,
                pass_fds=(seccomp, info, gate),
                cwd="/",
                # killed while it makes a sandbox it leaves an init, which waits for it for ever; a command sees no mark
                env=mark(),
                process_group=0,
                user=uid,
                group=uid,
                extra_groups=None if uid is None else [],
            )
        except BaseException as error:
            for fd in self._fds:
                os.close(fd)
            if isinstance(error, OSError):
                raise SandboxError(f"{bwrap} cannot be started: {error}") from error
            raise
        self._watch = os.pidfd_open(self._child.pid)
        self._fds.add(self._watch)
        for fd in (stdin, out, err, seccomp, info):
            self._close(fd)
        self._gate_inside = gate  # kept, to see whether the child has passed it
        self._fds -= {capture_out, capture_err, feed}
        self._stdin = feed
        self._stdout, self._stderr = Capture(capture_out, output_bytes), Capture(capture_err, output_bytes)
        self._feed: Feed | None = None

    async def hold(self) -> int:
        """The process id of the sandbox's init, which waits at the gate.

        Raises:
            SandboxError: no sandbox could be set up.
        """
        if not await self._find_init(_SETUP_TIMEOUT):
            if not await readable(self._watch, _KILL_TIMEOUT):
                raise SandboxError(f"bwrap set up no sandbox within {_SETUP_TIMEOUT:.0f} s; is the host overloaded?")
            await asyncio.wait([self._stderr.ended], timeout=_DRAIN_TIMEOUT)
            raise SandboxError(f"bwrap could not set up a sandbox: {self._complaint()}")
        return int(json.loads(self._told)["child-pid"])

    async def run(self, stdin: bytes, timeout: float, watch: Coroutine[None, None, str]) -> ExecResult:
        """Open the gate, feed `stdin`, and wait at most `timeout` seconds for the command to end.

        `watch` waits until a limit is passed and names it; then the command is killed.

        Raises:
            SandboxError: bwrap ended before the command was started.
        """
        os.write(self._gate, b"!")
        self._close(self._gate)
        self._feed, self._stdin = Feed(self._stdin, stdin), -1
        ended, over_limit = await self._wait(timeout, watch)
        timed_out = not ended and not over_limit
        if not ended:
            await self._kill()
        code = self._child.wait()
        await asyncio.wait([self._stdout.ended, self._stderr.ended], timeout=_DRAIN_TIMEOUT)
        if not self._passed_gate():
            raise SandboxError(f"bwrap ended with code {code} before the command: {self._complaint()}")
        return ExecResult(
            exit_code=TIMED_OUT if timed_out else code,
            stdout=self._stdout.data,
            stderr=self._stderr.data,
            timed_out=timed_out,
            output_truncated=self._stdout.truncated or self._stderr.truncated,
            over_limit=over_limit,
        )

    async def end(self) -> None:
        """Kill whatever lives, wait until it is gone, and close all descriptors."""
        try:
            if self._child.poll() is None:
                await self._kill()
        finally:
            self._stdout.close()
            self._stderr.close()
            if self._feed is not None:
                self._feed.close()
            if self._stdin >= 0:
                os.close(self._stdin)
            for fd in tuple(self._fds):
                self._close(fd)

    async def _wait(self, timeout: float, watch: Coroutine[None, None, str]) -> tuple[bool, str]:
        """Whether the command ended within `timeout` seconds, and the limit for which it must not go on."""
        ended = asyncio.ensure_future(readable(self._watch, timeout))
        passed = asyncio.create_task(watch)
        try:
            await asyncio.wait({ended, passed}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result(), ""
            return False, passed.result()
        finally:
            for future in (ended, passed):
                future.cancel()
            await asyncio.gather(ended, passed, return_exceptions=True)

    async def _find_init(self, timeout: float) -> bool:
        """Open the pidfd of the sandbox's init, which bwrap tells as soon as it has forked it; False if it does not."""
        os.set_blocking(self._info, False)
        while not self._told.rstrip().endswith(b"}"):
            if not await readable(self._info, timeout):
                return False
            part = os.read(self._info, 4096)
            if not part:
                return False
            self._told += part
        try:
            self._init = os.pidfd_open(json.loads(self._told)["child-pid"])
        except ProcessLookupError:
            return False
        self._fds.add(self._init)
        return True

    def _passed_gate(self) -> bool:
        """Whether the byte written to the gate has been taken, which bwrap does last before the command."""
        os.set_blocking(self._gate_inside, False)
        return os.read(self._gate_inside, 1) == b""

    async def _kill(self) -> None:
        # Init first: while it is being set up it outlives a bwrap that is killed.
        if self._init >= 0 or await self._find_init(_KILL_TIMEOUT):
            _send_kill(self._init)
            if await readable(self._watch, _KILL_TIMEOUT):
                self._child.wait()
                return
        os.killpg(self._child.pid, signal.SIGKILL)
        if not await readable(self._watch, _KILL_TIMEOUT):
            raise SandboxError(f"bwrap (pid {self._child.pid}) survives SIGKILL; the host is in trouble, look at dmesg")
        self._child.wait()

    def _complaint(self) -> str:
        return self._stderr.data.decode(errors="replace").strip()[-500:] or "it gave no reason"

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        self._fds.update(ends)
        return ends

    def _close(self, fd: int) -> None:
        if fd in self._fds:
            self._fds.remove(fd)
            os.close(fd)


def _send_kill(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
