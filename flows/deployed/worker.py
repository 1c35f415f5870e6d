"""What a flow does first when a worker runs it: the same as a command, but for what the worker has set already."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from deployments.guardian import OWNER
from flows.deployed.artifacts import showing
from flows.deployed.ending import heeding_termination
from flows.environment import default_root, prepare


@asynccontextmanager
async def on_worker(name: str) -> AsyncIterator[Path]:
    """The root of runs. Inside, what goes on is shown as artifacts of the flow run, under keys that begin with `name`.

    One that is cancelled tidies up itself; what it leaves running when it is killed is ended (`deployments.guardian`).
    """
    # the mark of a command that started the worker is not this one's
    os.environ.pop(OWNER, None)
    root = default_root()
    prepare(root, quiet=False)
    with heeding_termination():
        async with showing(name):
            yield root
