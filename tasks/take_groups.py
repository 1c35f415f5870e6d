"""Stages 1 to 3 of a step whose groups are sampled ahead: which of them it trains on, decided once and for all."""

import asyncio
import time
from typing import Any

from prefect import task

from tasks.draws import TAKEN, settle
from tasks.groups import due_within
from tasks.journal import write_json
from tasks.policy import staged
from tasks.progress import Event, emit
from tasks.rollout_ledger import GroupState, Taken
from tasks.rollouts import rollouts_of
from tasks.run import RunRef


@task(**staged("take_groups"))
async def take_groups(run: RunRef, label: str, step: int, step_timeout: float | None = None) -> dict[str, Any]:
    """Wait for the first complete groups, and make them the step's. Returns the seconds waited, and metrics.

    Raises:
        StepOverdue: they are not there after `step_timeout` seconds.
    """
    started = time.monotonic()
    rollouts = rollouts_of(run)

    def so_far() -> str:
        complete, wanted = rollouts.ledger.count(GroupState.COMPLETE), rollouts.ledger.pace.groups_per_step
        return f"{label}: {complete} of {wanted} groups are complete"

    known = run.journal.stage(label, TAKEN)
    if known is None:
        async with due_within(step_timeout, so_far):
            taken = await rollouts.take(step)
        known = taken.to_json() | {"metrics": _metrics(taken, rollouts.ledger.counts())}
        write_json(run.journal.stage_dir(label) / TAKEN, known)
    async with rollouts.files:
        trials = await asyncio.to_thread(settle, run.journal, label, Taken.from_json(known))
    emit(Event("trials", label, done=trials, total=trials))
    return {"seconds": time.monotonic() - started, "metrics": known["metrics"]}


def _metrics(taken: Taken, counts: dict[str, int]) -> dict[str, float]:
    """What was in flight when the step took its groups, and what it dropped."""
    return {
        "staleness/dropped_groups": float(len(taken.dropped)),
        "rollouter/running_groups": float(counts[GroupState.RUNNING]),
        "rollouter/complete_groups": float(counts[GroupState.COMPLETE]),
    }
