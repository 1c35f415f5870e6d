"""A Prefect flow around `run_trials`, as a step has it, and the groups that it is to run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def fan_out_flow(concurrency: int) -> Any:
    """The flow: run, label and config in, what `run_trials` returns out. To be made once Prefect is configured."""
    from prefect import flow

    from flows.deployed.artifacts import showing
    from tasks.run_log import logging_to
    from tasks.run_trials import run_trials

    @flow(name="bench-fan-out", persist_result=True, result_serializer="json")
    async def fan_out(run: Any, label: str, config: Any) -> dict[str, Any]:
        with logging_to(run):
            async with showing(run.name):
                result: dict[str, Any] = await run_trials(
                    run, label, 1, run.root, config.serving, config.rollout.sampling, config.sandbox, config.scaffold,
                    config.budgets, concurrency, config.rollout.infra_attempts,
                )  # fmt: skip
        return result

    return fan_out


def draw(run: Any, label: str, groups: int, attempts: int, tasks: Sequence[Path] = ()) -> None:
    """Journal the groups of a round, of these task folders in turn; of folders that do not exist, if there are none."""
    from harness.pool.index import TaskPointer
    from tasks.draw import as_groups, groups_path, groups_table
    from tasks.journal import write_table

    paths = tasks or [run.root / f"task-{i}" for i in range(groups)]
    pointers = [TaskPointer(f"task-{i}", paths[i % len(paths)]) for i in range(groups)]
    write_table(groups_path(run.journal.stage_dir(label)), groups_table(as_groups(pointers, label, attempts)))
