"""The deployment `clean`: by the clock, what dead processes have left behind."""

import asyncio
from typing import Any

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from flows.deployed.worker import on_worker
from flows.form_order import in_order
from harness.reaper import Sweep, reap
from harness.sandbox import SANDBOXES, SandboxConfig
from tasks.cluster_folders import sweep_cluster_folders
from tasks.orphans import sweep_engines


class CleanForm(BaseModel):
    """What is looked for, and whether it is removed."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=in_order)

    apply: bool = Field(True, title="Remove", description="Remove what is found; else it is only listed")
    backends: list[str] = Field(
        sorted(SANDBOXES),
        title="Backends",
        description="Sandbox backends to look at; one that does not answer is noted",
    )


@flow(name="clean", flow_run_name="clean")
async def clean(what: CleanForm = CleanForm()) -> dict[str, Any]:  # noqa: B008  (never changed)
    """Remove sandboxes, containers and folders whose process has died, and engines of dead runs at RAY_ADDRESS. What is
    alive, or another's, is left alone.

    Args:
        what: Where to look.
    """
    async with on_worker("clean"):
        sweep = await asyncio.to_thread(reap, SandboxConfig(), what.backends, apply=what.apply)
        await asyncio.to_thread(sweep_cluster_folders, sweep, apply=what.apply)
        await asyncio.to_thread(sweep_engines, sweep, apply=what.apply)
    return told(sweep, what.apply)


def told(sweep: Sweep, applied: bool) -> dict[str, Any]:
    """The flow's result."""
    found = [f"{leftover.backend} {leftover.kind} {leftover.name}" for leftover in sweep.found]
    return {"found": found, "removed": len(found) - len(sweep.failed) if applied else 0, "failed": sweep.failed,
            "unreachable": sweep.unreachable}  # fmt: skip
