"""The rollouter beside the steps of a run, in the modes that sample ahead."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from flows.config import RunConfig
from tasks.draws import restore
from tasks.policy import PERMANENT
from tasks.progress import Event, emit
from tasks.rollout_ledger import Pace
from tasks.rollouter import rollouter
from tasks.rollouts import Rollouts, live
from tasks.run import RunRef


@asynccontextmanager
async def rolling_out(run: RunRef, config: RunConfig, model: Path, version: int) -> AsyncIterator[None]:
    """Keep groups in flight inside the block, of a run whose weights are at `version`; nothing in mode sync.

    A rollouter that fails in all its tries, with no step in between, fails the step that waits for its groups, and at
    the latest the block.
    """
    if not config.samples_ahead:
        yield
        return
    pace = Pace(config.mode, config.rollout.tasks_per_step, config.schedule.total_steps, config.staleness)
    rollouts = Rollouts(await asyncio.to_thread(restore, run, pace, version))

    async def watched() -> None:
        while True:
            before = rollouts.ledger.version
            try:
                await rollouter(
                    run, model, config.data, config.rollout, config.pool, config.serving, config.sandbox,
                    config.scaffold, config.verifier, config.budgets, config.algorithm.needs_greedy_trial,
                    config.plugins,
                )  # fmt: skip
                return
            except Exception as error:
                # its tries would have to last for all of a long run
                if isinstance(error, PERMANENT) or rollouts.ledger.version == before or rollouts.stopping:
                    await rollouts.fail(error)
                    raise
                first = str(error).partition("\n")[0]
                emit(Event("note", "", f"the rollouter failed, {type(error).__name__}: {first}. It begins anew"))

    with live(run, rollouts):
        beside = asyncio.create_task(watched())
        try:
            yield
            await rollouts.stop()
            await beside
        finally:
            await rollouts.stop()
            await asyncio.gather(beside, return_exceptions=True)
