"""Trials in Ray workers: processes on the nodes of the cluster, each with a proxy and a way to the policy of its own.

The flow hands out a trial only when a worker has room, takes back its result, and alone writes the journal. A worker
that dies costs no trial: those that it ran begin anew elsewhere, under new sessions, and another takes its place.
Workers end with the flow's process, however it ends, and their sandboxes are found by their labels.
"""

import asyncio
import dataclasses
import importlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from harness.budgets import BudgetConfig
from harness.proxy.server import ProxyServer
from harness.reaper import reaping
from harness.sandbox import SandboxConfig, require_isolation
from harness.sandbox.owner import owned_by
from harness.scaffolds.base import ScaffoldConfig
from harness.trial import TrialResult, TrialSpec, new_session_id, run_trial_with_retries
from tasks.calm import calm_process
from tasks.run import RunRef
from trainer.nodes import ROLLOUT, demand, nodes_for
from trainer.rollout import Outcome

BOOT_SECONDS = 300.0
STOP_SECONDS = 60.0
AGAIN_SECONDS = 60.0
"""After a worker that could not be started."""

_log = logging.getLogger(__name__)


class WorkersConfig(BaseModel):
    """Where the trials of a step run. Task folders must be under the same paths on every node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per_node: int = Field(
        0,
        ge=0,
        description="Processes that run trials, on each node of the Ray cluster; 0: the flow's own process does",
    )
    node_concurrency: int = Field(
        64, ge=1, description="Trials at once on one node, shared by its workers; rollout.concurrency bounds all nodes"
    )


class WorkersGone(RuntimeError):
    """No worker is left, and none could be started."""


@dataclass(frozen=True)
class Setup:
    """What a worker needs to run a run's trials. `served` makes its policy; see `tasks.served_policy.Served`."""

    run: RunRef
    served: Callable[[], AbstractAsyncContextManager[Any]]
    sandbox: SandboxConfig
    scaffold: ScaffoldConfig
    budgets: BudgetConfig
    infra_attempts: int
    plugins: Sequence[str] = ()


class TrialWorker:
    """The actor: runs trials, as many at once as it is handed."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._open = AsyncExitStack()
        self._proxy: ProxyServer | None = None

    async def start(self) -> None:
        """Open proxy and policy. What dead workers left on this node is removed first."""
        setup = self._setup
        for plugin in setup.plugins:
            importlib.import_module(plugin)
        await asyncio.to_thread(require_isolation, setup.sandbox)
        await self._open.enter_async_context(reaping(setup.sandbox))
        served = await self._open.enter_async_context(setup.served())
        calm_process()
        self._proxy = await self._open.enter_async_context(
            ProxyServer(served.policy, served.codec, served.window, tools=served.tools)
        )

    async def run(self, spec: TrialSpec) -> TrialResult:
        """Run one trial to its end."""
        setup = self._setup
        assert self._proxy is not None, "start comes first"
        with owned_by(project=setup.run.project, run=setup.run.experiment):
            return await run_trial_with_retries(
                spec, self._proxy, setup.sandbox, setup.scaffold, setup.budgets, attempts=setup.infra_attempts
            )

    async def stop(self) -> None:
        """Close what is open, and wait for sandboxes that still stop."""
        await self._open.aclose()


@dataclass
class _Seat:
    """The place of a worker. `actor` is None while nobody sits there, `boot` what brings the next one."""

    node: str
    room: int
    actor: Any = None
    busy: int = 0
    booting: bool = False
    boot: "asyncio.Task[None] | None" = field(default=None, repr=False)


class TrialWorkers:
    """The workers of one fan-out, as the flow sees them."""

    def __init__(self, setup: Setup, seats: Sequence[_Seat]) -> None:
        self._setup, self._seats = setup, list(seats)
        self._changed = asyncio.Condition()

    async def run(self, spec: TrialSpec) -> TrialResult:
        """The trial's result, from the worker that has most room once one has any.

        A trial whose worker dies begins anew on another, `infra_attempts` times in all; then it is an infra_error.

        Raises:
            WorkersGone: no worker is left.
        """
        from ray.exceptions import RayActorError

        first, error = spec.attempt, ""
        while spec.attempt - first < self._setup.infra_attempts:
            asked = time.monotonic()
            seat = await self._seat()
            spec = dataclasses.replace(spec, queue_seconds=spec.queue_seconds + time.monotonic() - asked)
            actor = seat.actor
            try:
                return await self._on(actor, spec)
            except RayActorError as death:
                error = f"its worker died: {str(death).splitlines()[0]}"
                _log.warning("session %s: %s", spec.session_id, error)
                self._replace(seat, actor)
            finally:
                seat.busy -= 1
                async with self._changed:
                    self._changed.notify()
            spec = dataclasses.replace(spec, session_id=new_session_id(spec.task_id), attempt=spec.attempt + 1)
        return TrialResult(spec, Outcome.INFRA_ERROR, error=error)

    async def _on(self, actor: Any, spec: TrialSpec) -> TrialResult:
        import ray

        reference = actor.run.remote(spec)
        try:
            result: TrialResult = await reference
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        return result

    async def _seat(self) -> _Seat:
        """A place at a worker that has room, taken."""

        def free() -> list[_Seat]:
            return [seat for seat in self._seats if seat.actor is not None and seat.busy < seat.room]

        def gone() -> bool:
            return all(seat.actor is None and not seat.booting for seat in self._seats)

        async with self._changed:
            await self._changed.wait_for(lambda: free() or gone())
            if not free():
                raise WorkersGone("every trial worker has died, and none could be started again; see the log above")
            seat = max(free(), key=lambda seat: seat.room - seat.busy)
            seat.busy += 1
            return seat

    def _replace(self, seat: _Seat, actor: Any) -> None:
        """Have another worker take the place of one that died, once, however many trials saw it die."""
        import ray

        if seat.actor is actor:
            ray.kill(actor)  # one that merely could not be reached must not go on
            seat.actor, seat.booting = None, True
            seat.boot = asyncio.create_task(self._boot_again(seat))

    async def _boot_again(self, seat: _Seat) -> None:
        """Until there is one; meanwhile nobody waits for this place alone."""
        while seat.actor is None:
            try:
                seat.booting = True
                await self._boot(seat)
            except Exception as error:
                _log.error("no trial worker could be started on node %s: %s", seat.node, error)
            finally:
                seat.booting = False
            async with self._changed:
                self._changed.notify_all()
            if seat.actor is None:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _boot(self, seat: _Seat) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # on another node when its own is gone; not detached: it ends with the flow's process
        place = NodeAffinitySchedulingStrategy(node_id=seat.node, soft=True)
        options = {"num_cpus": 0, "max_concurrency": seat.room + 2, "max_restarts": 0, "scheduling_strategy": place}
        options["resources"] = demand(ROLLOUT)
        actor = ray.remote(TrialWorker).options(**options).remote(self._setup)
        try:
            await asyncio.wait_for(actor.start.remote(), BOOT_SECONDS)
        except BaseException:
            ray.kill(actor)
            raise
        seat.actor = actor

    async def start(self) -> None:
        """Boot all workers.

        Raises:
            Exception: what the first failed with; the others are stopped.
        """
        await asyncio.gather(*(self._boot(seat) for seat in self._seats))

    async def stop(self) -> None:
        """End all workers; what they still run is stopped with its sandboxes."""
        import ray

        boots = [seat.boot for seat in self._seats if seat.boot is not None]
        for boot in boots:
            boot.cancel()
        await asyncio.gather(*boots, return_exceptions=True)
        actors = [seat.actor for seat in self._seats if seat.actor is not None]
        stops = [asyncio.wait_for(actor.stop.remote(), STOP_SECONDS) for actor in actors]
        for failure in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(failure, BaseException):
                _log.warning("a trial worker did not stop in time: %s", failure)
        for actor in actors:
            ray.kill(actor)


@asynccontextmanager
async def trial_workers(setup: Setup, config: WorkersConfig) -> AsyncIterator[TrialWorkers]:
    """`per_node` workers on every living node that trials may run on, for as long as the block lasts."""
    nodes = sorted(node["NodeID"] for node in nodes_for(ROLLOUT))
    room = math.ceil(config.node_concurrency / config.per_node)
    workers = TrialWorkers(setup, [_Seat(node, room) for node in nodes for _ in range(config.per_node)])
    try:
        await workers.start()
        yield workers
    finally:
        await workers.stop()
