"""A policy from a script for trial workers: made in each of their processes, which so tell their pids."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.scripted import ScriptedPolicy
from support.tasks import FIXED
from support.tiny import tiny_tokenizer

from harness.proxy.codec import ChatCodec
from harness.proxy.tool_calls import ToolReader
from tasks.served_policy import Served

PIDS = "pids"


class Serving(ScriptedPolicy):
    async def require_serving(self) -> None:
        pass


@asynccontextmanager
async def served(run: Any, *_: Any) -> AsyncIterator[Served]:
    """Answers right after a moment; leaves a file named by its process in `run.root/pids`."""
    tokenizer = tiny_tokenizer()
    (run.root / PIDS).mkdir(exist_ok=True)
    (run.root / PIDS / str(os.getpid())).touch()
    policy = Serving(tokenizer, [f"```python\n{FIXED}```\n"], delay=0.4)
    yield Served(policy, ChatCodec(tokenizer), ToolReader(tokenizer, None, None), 2000)  # type: ignore[arg-type]
