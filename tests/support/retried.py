"""A flow run whose second step fails once, and whose retry leaves the first one out, as a training run does."""

import asyncio

import support.quiet_prefect  # noqa: F401
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.services import Services
from flows.subflows import for_label
from tasks.journal import step_label


def steps_of_a_retried_run(services: Services) -> tuple[list[int], list[int]]:
    """Which steps were entered, in order, and what the retry was told that it made."""
    entered: list[int] = []
    finished: set[int] = set()

    @flow(name="retried-step", flow_run_name="step-{step}", persist_result=True, result_serializer="json")
    async def one_step(step: int) -> int:
        entered.append(step)
        if entered == [1, 2]:
            raise RuntimeError("once")
        finished.add(step)
        return step

    @flow(name="retried", retries=1)
    async def all_steps() -> list[int]:
        left = [step for step in (1, 2, 3) if step not in finished]
        return [await for_label(one_step, step_label(step))(step) for step in left]

    with temporary_settings({PREFECT_API_URL: services.prefect_api_url}):
        return entered, asyncio.run(all_steps())
