"""The fan-out of a collection: one Prefect task, in which each trial is made, journaled and graded by itself."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from harness.endpoint import Endpoint, EndpointConfig
from harness.grading import grade_with_retries
from harness.pool.task import Task, TaskError
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.proxy.tool_calls import ToolReader
from harness.reaper import reaping
from harness.sandbox.owner import owned_by
from harness.sandbox.tree import WorkspaceError
from harness.trial import TrialResult, TrialSpec, new_session_id, run_trial_with_retries
from harness.verifier import GradingError, Status, Verdict
from tasks.collection import LABEL, CollectionSettings, missing, remove_half_written, standing
from tasks.draw import Group, groups_path, read_groups
from tasks.groups import task_group, to_the_end
from tasks.policy import worth_retrying
from tasks.progress import Event, emit
from tasks.run import RunRef
from tasks.served_policy import as_told, served_policy
from tasks.trial_files import StoredTrial, load_trial, store_trial, store_verdict
from trainer.rollout import Outcome, Policy
from trainer.serving.config import ServingConfig


@task(name="collect_trials", cache_policy=NO_CACHE, retries=1, retry_condition_fn=worth_retrying)
async def collect_trials(
    run: RunRef,
    settings: CollectionSettings,
    serving: ServingConfig,
    model: str | None = None,
    endpoint: EndpointConfig | None = None,
) -> dict[str, Any]:
    """Make and grade what the collection lacks. Returns what `fill` does.

    Args:
        model: The folder that the run's replicas serve.
        endpoint: Who serves the policy in their place.
    """
    async with served_policy(run, Path(model or ""), serving, endpoint) as served:
        policy = served.policy
        own = settings.model_copy(update={"window": min(settings.window, served.window)})
        return await fill(
            run, policy, served.codec, own, tools=served.tools, still_serving=policy.require_serving,
            amend=(lambda result: as_told(result, policy)) if isinstance(policy, Endpoint) else None,
        )  # fmt: skip


async def fill(
    run: RunRef,
    policy: Policy,
    codec: ChatCodec,
    settings: CollectionSettings,
    *,
    tools: ToolReader | None = None,
    still_serving: Callable[[], Awaitable[None]] | None = None,
    amend: Callable[[TrialResult], None] | None = None,
) -> dict[str, Any]:
    """Make and grade the trials of groups.parquet that are missing. Returns counts of what was done, and the seconds.

    One semaphore is all there is between trials: each begins when another ends. The caller holds the collection.

    Args:
        still_serving: Asked after a trial is lost; it raises if the serving side is dead, which is no trial's property.
        amend: Called with each trial before it is stored.

    When so many trials in a row are lost that the machine is to blame, no more are begun; `stopped` then says why.
    """
    began = time.monotonic()
    await asyncio.to_thread(remove_half_written, run)
    groups = read_groups(groups_path(run.journal.root))
    there = await asyncio.to_thread(standing, run, groups)
    paths = {group.group_id: group.task_path for group in groups}
    to_make = missing(groups, there.ended)
    tally = _Tally(
        passed=there.passed.total(), failed=there.failed.total(), waiting=len(there.ungraded) + len(to_make),
        patience=max(settings.lost_in_a_row, 2 * settings.concurrency),
    )  # fmt: skip
    slots = asyncio.Semaphore(settings.concurrency)

    async def make(group: Group, proxy: ProxyServer) -> StoredTrial:
        spec = TrialSpec(
            new_session_id(group.task_id), group.group_id, group.task_id, group.task_path, 0, settings.sampling,
            scaffold=group.scaffold,
        )  # fmt: skip
        result = await run_trial_with_retries(
            spec, proxy, settings.sandbox, settings.scaffold, settings.budgets, attempts=settings.infra_attempts
        )
        if result.outcome is Outcome.INFRA_ERROR and still_serving is not None:
            await still_serving()
        if amend is not None:
            amend(result)
        folder = run.journal.trials_dir(LABEL) / result.spec.session_id
        # another try begins by removing what is half written
        await to_the_end(store_trial, folder, result)
        return await asyncio.to_thread(load_trial, folder)

    async def grade(trial: StoredTrial) -> Verdict:
        try:
            return await grade_with_retries(
                Task.load(paths[trial.group_id]), trial.patch(), settings.sandbox, settings.verifier, settings.budgets,
                attempts=settings.infra_attempts, trial=trial.session_id,
            )  # fmt: skip
        except (TaskError, GradingError, WorkspaceError) as error:
            # a task that cannot be graded costs its own trials, not those of the others
            return Verdict(0.0, Status.INFRA_ERROR, f"{type(error).__name__}: {error}")

    async def one(work: Group | StoredTrial, proxy: ProxyServer) -> None:
        try:
            trial = work if isinstance(work, StoredTrial) else await make(work, proxy)
            if trial.outcome is Outcome.INFRA_ERROR:
                tally.lose(str(trial.record["error"]))
                return
            verdict = await grade(trial)
            await to_the_end(store_verdict, trial.folder, verdict)
            if verdict.status is Status.INFRA_ERROR:
                tally.lose(verdict.reason)
            else:
                tally.count(verdict)
        finally:
            slots.release()

    tally.tell()
    with owned_by(project=run.project, run=run.experiment):
        async with (
            reaping(settings.sandbox),
            ProxyServer(policy, codec, settings.window, tools=tools) as proxy,
            task_group() as trials,
        ):
            todo: list[StoredTrial | Group] = [*there.ungraded, *to_make]
            for work in todo:
                await slots.acquire()
                if tally.stopped is not None:
                    break
                trials.create_task(one(work, proxy))
    counted = tally.passed + tally.failed - there.passed.total() - there.failed.total()
    seconds = time.monotonic() - began
    return {"counted": counted, "lost": tally.lost, "seconds": seconds, "stopped": tally.stopped}


class _Tally:
    """Counts for whoever watches, and for giving up: losses in a row, and what the newest one said."""

    def __init__(self, passed: int, failed: int, waiting: int, patience: int) -> None:
        self.passed, self.failed, self.lost = passed, failed, 0
        self.total = passed + failed + waiting
        self.stopped: str | None = None
        self._patience, self._row, self._reasons = patience, 0, Counter[str]()

    def count(self, verdict: Verdict) -> None:
        self._row = 0
        self._reasons.clear()
        if verdict.status is Status.PASSED:
            self.passed += 1
        else:
            self.failed += 1
        self.tell()

    def lose(self, reason: str) -> None:
        self.lost += 1
        self._row += 1
        self._reasons[reason] += 1
        self.tell()
        if self._row >= self._patience:
            ((most, _),) = self._reasons.most_common(1)
            self.stopped = f"the last {self._row} trials were all lost to infrastructure, most often: {most[:300]}"

    def tell(self) -> None:
        data = {"passed": self.passed, "failed": self.failed, "lost": self.lost}
        emit(Event("collect", LABEL, done=sum(data.values()), total=self.total, data=data))
