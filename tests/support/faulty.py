"""A sandbox backend that breaks as told: any other backend, with a fault at one operation."""

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.sandbox.base import ExecResult, Sandbox, SandboxConfig, SandboxError, create_sandbox
from harness.sandbox.owner import current_owner
from harness.sandbox.tree import Tree

OPERATIONS = ("start", "upload", "write_files", "mount_read_only", "exec", "read_tree", "stop")
SLOW = 0.02


@dataclass(frozen=True)
class Fault:
    """At `operation`, of a kind: `dies` before it, `breaks` after it, `full` (no space left), `hangs`, `killed` in the
    middle of it, or `slow`, which is none."""

    operation: str
    kind: str

    def __str__(self) -> str:
        return f"{self.operation}-{self.kind}"

    @property
    def harmless(self) -> bool:
        """Whether the trial's result stands all the same."""
        return self.kind == "slow" or self.operation == "stop"


FAULTS = [
    *(Fault(operation, kind) for operation in OPERATIONS for kind in ("dies", "breaks", "hangs", "slow")),
    *(Fault(operation, "full") for operation in ("start", "upload", "write_files", "mount_read_only", "read_tree")),
    Fault("exec", "killed"),
]


@dataclass
class Faults:
    """Which sandbox gets which fault: `choose(trial, n)` for the n-th sandbox of a trial, by the name of its owner."""

    choose: Callable[[str, int], Fault | None]
    inner: str = "bubblewrap"
    made: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    on_operation: Callable[[str], None] = lambda operation: None

    @classmethod
    def at(cls, *faults: Fault | None) -> "Faults":
        """The first sandboxes of each trial get these, further ones none."""
        return cls(lambda trial, n: faults[n] if n < len(faults) else None)

    @classmethod
    def seeded(cls, seed: int, rate: float, among: Sequence[Fault]) -> "Faults":
        """Each sandbox of a trial gets one of `among` with probability `rate`, whatever else goes on."""

        def choose(trial: str, n: int) -> Fault | None:
            rng = random.Random(f"{seed}/{trial}/{n}")
            return rng.choice(among) if rng.random() < rate else None

        return cls(choose)

    def backend(self) -> type[Sandbox]:
        """The class to register."""
        return type("FaultySandbox", (_Faulty,), {"faults": self})

    def next(self, trial: str) -> Fault | None:
        """The fault of the next sandbox of `trial`."""
        n = self.made[trial]
        self.made[trial] += 1
        return self.choose(trial, n)


class _Faulty(Sandbox):
    faults: Faults

    def __init__(self, config: SandboxConfig) -> None:
        super().__init__(config)
        self.inner = create_sandbox(config.model_copy(update={"backend": self.faults.inner}))
        # sessions are named <task>-<hex>; each retry has another hex
        self.fault = self.faults.next(current_owner().trial.rpartition("-")[0])

    @classmethod
    def require_isolation(cls, config: SandboxConfig) -> None:
        return None

    @property
    def python(self) -> str:
        return self.inner.python

    async def start(self) -> None:
        await self._run("start", self.inner.start)

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
        return await self._run(
            "exec",
            lambda: self.inner.exec(argv, timeout=timeout, cwd=cwd, env=env, stdin=stdin, writable=writable),
        )

    async def mount_read_only(self, mount: str, files: Mapping[str, bytes]) -> None:
        await self._run("mount_read_only", lambda: self.inner.mount_read_only(mount, files))

    async def write_files(self, files: Mapping[str, bytes | None]) -> None:
        await self._run("write_files", lambda: self.inner.write_files(files))

    async def read_file(self, relpath: str, max_bytes: int) -> bytes:
        return await self.inner.read_file(relpath, max_bytes)

    async def read_tree(self, keep: Callable[[str, bytes], bool]) -> Tree:
        return await self._run("read_tree", lambda: self.inner.read_tree(keep))

    async def upload(self, src_dir: Path, relpath: str = ".") -> None:
        await self._run("upload", lambda: self.inner.upload(src_dir, relpath))

    async def stop(self) -> None:
        await self._run("stop", self.inner.stop)

    async def _run(self, operation: str, inner: Callable[[], Any]) -> Any:
        self.faults.on_operation(operation)
        if self.fault is None or self.fault.operation != operation:
            return await inner()
        kind, fault = self.fault.kind, self.fault
        self.fault = None  # once
        self.faults.injected[str(fault)] += 1
        if kind == "dies":
            raise SandboxError(f"{operation}: the daemon does not answer")
        if kind == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if kind == "hangs":
            await asyncio.Event().wait()
        if kind == "killed":
            await _kill_midway(inner())
            raise SandboxError(f"{operation}: the container is gone")
        if kind == "slow":
            await asyncio.sleep(SLOW)
        result = await inner()
        if kind == "breaks":
            raise SandboxError(f"{operation}: the connection broke off")
        return result


async def _kill_midway(command: Any) -> None:
    task = asyncio.ensure_future(command)
    await asyncio.wait({task}, timeout=SLOW)
    task.cancel()
    await asyncio.wait({task})
