"""The deployment `collect`."""

from typing import Any

from prefect import flow

from flows.collect import CollectConfig
from flows.collect import collect as collect_trials
from flows.deployed.worker import on_worker


@flow(name="collect", flow_run_name="collect-{config.asked}", persist_result=True, result_serializer="json")
async def collect(config: CollectConfig) -> dict[str, Any]:
    """Roll a policy out over an index. The same goes on where it stopped; more attempts are added to what is there.

    Args:
        config: Which policy, which tasks, and how often each.
    """
    async with on_worker(f"collect-{config.name or config.asked}") as root:
        # its body, not a flow of its own, as `train` does
        record: dict[str, Any] = await collect_trials.fn(config, root)
        return record
