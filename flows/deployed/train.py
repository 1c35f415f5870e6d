"""The deployment `train`."""

from typing import Any

from prefect import flow

from flows.deployed.artifacts import link_artifacts, show_earlier_steps
from flows.deployed.train_form import TrainForm
from flows.deployed.worker import on_worker
from flows.train import train as train_run
from tasks.journal import Journal


@flow(
    name="train",
    flow_run_name="train-{run.project}-{run.experiment}",
    persist_result=True,
    result_serializer="json",
)
async def train(run: TrainForm) -> dict[str, Any]:
    """Train a policy on repair tasks. A run of the same name goes on where it stopped.

    Args:
        run: What is to be trained, and how.
    """
    config = run.to_config()
    name = f"{config.project}-{config.experiment}"
    async with on_worker(name) as root:
        await link_artifacts(name, root, config.project, config.experiment)
        show_earlier_steps(Journal(root / config.project / config.experiment))
        # its body, not a flow of its own: the steps are subflows of this run, which is what the UI retries
        summary: dict[str, Any] = await train_run.fn(config, root)
        return summary
