"""What only a bubblewrap command does; the rest is in test_contract_exec.py."""

import asyncio
import os

import pytest
from support.sandboxes import processes_with

from harness.sandbox import SandboxConfig, SandboxError, create_sandbox


async def test_number_of_commands_at_a_time_is_bounded() -> None:
    mark = f"mark-{os.getpid()}-slots"
    async with create_sandbox(SandboxConfig(max_concurrent_execs=2)) as sandbox:
        tasks = [asyncio.create_task(sandbox.exec(["sh", "-c", f"sleep 600; : {mark}"], timeout=600)) for _ in range(5)]
        await asyncio.sleep(0.5)
        held = [pid for pid in processes_with(mark) if "bwrap" in os.readlink(f"/proc/{pid}/exe")]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert 0 < len(held) <= 4  # two commands, each seen as bwrap and as what bwrap has forked
    assert processes_with(mark) == []


async def test_a_failing_set_up_is_the_machines_fault() -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        os.rename(sandbox._base / "workspace", sandbox._base / "gone")  # type: ignore[attr-defined]
        with pytest.raises(SandboxError, match="bwrap"):
            await sandbox.exec(["true"], timeout=20)
