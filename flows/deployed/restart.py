"""The deployment `restart`: a training run whose process has died goes on by itself, as often as its form allows.

An automation that `testgrad up` enters starts it for every run of `train` that has crashed. One that failed, or was
cancelled, stays as it is: another try would end in the same way, or was not wanted.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import AwaitingRetry

from flows.deployed.train_form import TrainForm
from flows.deployed.worker import on_worker
from tasks.lease import living_holder

PAUSE = timedelta(seconds=10)
"""Between a death and the next start: what killed the process may go on for a moment."""


@flow(name="restart", flow_run_name="restart")
async def restart(crashed: UUID) -> str:
    """Have a crashed training run go on, if nobody works on it and its starts are not used up. Returns what was done.

    Args:
        crashed: The flow run.
    """
    async with on_worker("restart") as root, get_client() as client:
        run = await client.read_flow_run(crashed)
        if (reason := _reason_against(run, root)) is not None:
            return f"{run.name} is left as it is: {reason}"
        again: State[Any] = AwaitingRetry(scheduled_time=datetime.now(UTC) + PAUSE, message="its process has died")
        answer = await client.set_flow_run_state(crashed, again)
        if answer.state is None or not answer.state.is_scheduled():
            raise RuntimeError(f"{run.name} cannot be retried: {answer.details}")
    return f"{run.name} goes on, start {run.run_count + 1} of at most {_starts(run)}"


def _reason_against(run: FlowRun, root: Path) -> str | None:
    if run.state is None or not run.state.is_crashed():
        return f"it is {run.state.name if run.state else 'in no state'}"
    if run.run_count >= _starts(run):
        return f"it was started {run.run_count} times, and advanced.restarts allows {_starts(run)}"
    form = _form(run)
    holder = living_holder(root / form.project / form.experiment)
    return f"{holder} works on it" if holder is not None else None


def _starts(run: FlowRun) -> int:
    advanced = _form(run).advanced
    return 1 + int(advanced.restarts)  # type: ignore[attr-defined]


def _form(run: FlowRun) -> TrainForm:
    return TrainForm.model_validate(run.parameters["run"])
