"""The deployment `warm-start`."""

from typing import Any

from prefect import flow

from flows.deployed.worker import on_worker
from flows.warm_start import warm_start as warm_start_run
from flows.warm_start_config import WarmStartConfig


@flow(
    name="warm-start",
    flow_run_name="warm-start-{config.project}-{config.experiment}",
    persist_result=True,
    result_serializer="json",
)
async def warm_start(config: WarmStartConfig) -> dict[str, Any]:
    """Fine-tune a policy on accepted trajectories. One of the same name goes on where it stopped.

    Args:
        config: What is learnt from, and how.
    """
    async with on_worker(f"{config.project}-{config.experiment}") as root:
        # its body, not a flow of its own, as `train` does
        summary: dict[str, Any] = await warm_start_run.fn(config, root)
        return summary
