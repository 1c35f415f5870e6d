"""Trials, so many at once, wherever they run: what a step's fan-out and the rollouter have in common."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path

from harness.budgets import BudgetConfig
from harness.endpoint import Endpoint, EndpointConfig
from harness.proxy.server import ProxyServer
from harness.reaper import reaping
from harness.sandbox import SandboxConfig, require_isolation
from harness.sandbox.owner import owned_by
from harness.scaffolds.base import ScaffoldConfig
from harness.trial import TrialResult, TrialSpec, new_session_id, run_trial_with_retries
from tasks.calm import calm_process
from tasks.draw import Group
from tasks.groups import to_the_end
from tasks.keep_replicas import replicas_kept
from tasks.run import RunRef
from tasks.served_policy import Served, as_told, served_policy
from tasks.trial_files import store_trial
from tasks.trial_workers import Setup, WorkersConfig, trial_workers
from trainer.rollout import Outcome, Sampling
from trainer.serving.config import ServingConfig

Launch = Callable[[TrialSpec], Awaitable[TrialResult]]


class FanOut:
    """Runs trials against one policy, at most `concurrency` at a time, in the order in which they are asked for."""

    def __init__(self, served: Served, launch: Launch, sampling: Sampling, concurrency: int) -> None:
        self._served, self._launch, self._sampling = served, launch, sampling
        self._slots = asyncio.Semaphore(concurrency)

    async def run(self, group: Group, step: int, folder: Path) -> TrialResult:
        """Run a trial of the group once there is a slot, and store it under `folder`.

        Raises:
            Exception: the policy serves nothing. A dead engine is no property of this trial: a restart runs it again.
        """
        queued = time.monotonic()
        async with self._slots:
            spec = TrialSpec(
                new_session_id(group.task_id), group.group_id, group.task_id, group.task_path, step,
                greedily(self._sampling) if group.greedy else self._sampling, scaffold=group.scaffold,
                queue_seconds=time.monotonic() - queued,
            )  # fmt: skip
            result = await self._launch(spec)
            if result.outcome is Outcome.INFRA_ERROR:
                await self._served.policy.require_serving()
            if isinstance(self._served.policy, Endpoint):
                as_told(result, self._served.policy)
            await to_the_end(store_trial, folder / result.spec.session_id, result)
            return result


@asynccontextmanager
async def fan_out(
    run: RunRef,
    model: Path,
    serving: ServingConfig,
    sampling: Sampling,
    sandbox: SandboxConfig,
    scaffold: ScaffoldConfig,
    budgets: BudgetConfig,
    concurrency: int,
    infra_attempts: int,
    endpoint: EndpointConfig | None = None,
    workers: WorkersConfig = WorkersConfig(),  # noqa: B008  (frozen)
    plugins: Sequence[str] = (),
) -> AsyncIterator[FanOut]:
    """A fan-out for as long as the block lasts: in this process, or in workers on the nodes of the cluster.

    With `endpoint` the policy is what it serves, and trials run here, where its answers are counted.

    Raises:
        SandboxUnavailable: no sandbox can confine an agent here.
    """
    require_isolation(sandbox)
    with owned_by(project=run.project, run=run.experiment):
        kept = replicas_kept(run, serving) if endpoint is None else nullcontext()
        async with reaping(sandbox), kept, served_policy(run, model, serving, endpoint) as served:
            if workers.per_node and endpoint is None:
                policy = partial(served_policy, run, model, serving, None)
                setup = Setup(run, policy, sandbox, scaffold, budgets, infra_attempts, plugins)
                async with trial_workers(setup, workers) as others:
                    yield FanOut(served, others.run, sampling, concurrency)
                return
            calm_process()
            async with ProxyServer(served.policy, served.codec, served.window, tools=served.tools) as proxy:

                async def launch(spec: TrialSpec) -> TrialResult:
                    return await run_trial_with_retries(
                        spec, proxy, sandbox, scaffold, budgets, attempts=infra_attempts
                    )

                yield FanOut(served, launch, sampling, concurrency)


def greedily(sampling: Sampling) -> Sampling:
    """The most likely token each time. Log-probs are then those at temperature 1; nothing is trained on them."""
    return dataclasses.replace(sampling, temperature=0.0, top_p=1.0)
