"""A sandbox in which nothing runs: what surrounds thousands of trials is measured, not thousands of namespaces."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.sandbox.base import ExecResult, Sandbox, SandboxConfig, register_sandbox
from harness.sandbox.tree import Tree

BACKEND = "still"


@register_sandbox(BACKEND)
class StillSandbox(Sandbox):
    """Takes as long to start as `start_seconds` says, at most; files written are found again, commands do nothing."""

    start_seconds = 0.0
    waited = 0.0
    """The longest start so far, in seconds."""

    def __init__(self, config: SandboxConfig) -> None:
        super().__init__(config)
        self._files: dict[str, bytes] = {}

    @classmethod
    def require_isolation(cls, config: SandboxConfig) -> None:
        return None

    @property
    def python(self) -> str:
        return "/usr/bin/python3"

    async def start(self) -> None:
        seconds = random.uniform(0, self.start_seconds)
        StillSandbox.waited = max(StillSandbox.waited, seconds)
        await asyncio.sleep(seconds)

    async def exec(self, argv: Sequence[str], **_: Any) -> ExecResult:
        return ExecResult(0, b"", b"")

    async def mount_read_only(self, mount: str, files: Mapping[str, bytes]) -> None:
        return None

    async def write_files(self, files: Mapping[str, bytes | None]) -> None:
        self._files |= {path: data for path, data in files.items() if data is not None}

    async def read_file(self, relpath: str, max_bytes: int) -> bytes:
        return self._files[relpath]

    async def read_tree(self, keep: Callable[[str, bytes], bool]) -> Tree:
        return Tree(files={path: data for path, data in self._files.items() if keep(path, data)}, seen=set(self._files))

    async def upload(self, src_dir: Path, relpath: str = ".") -> None:
        for path in await asyncio.to_thread(lambda: [found for found in src_dir.rglob("*") if found.is_file()]):
            self._files[path.relative_to(src_dir).as_posix()] = path.read_bytes()

    async def stop(self) -> None:
        self._files.clear()
