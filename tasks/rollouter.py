"""Beside the steps: keeps groups in flight, each graded as its trials end, until the run has taken all it will.

Its trials go on while the learner updates. In a sync the replicas freeze them between two tokens; no trial begins anew
because of one.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from harness.budgets import BudgetConfig
from harness.pool.sampler import SamplerConfig
from harness.sandbox import SandboxConfig
from harness.scaffolds.base import ScaffoldConfig
from harness.verifier import Status, VerifierConfig
from tasks.config import DataConfig, RolloutConfig
from tasks.draw import Group
from tasks.draws import draw_groups, draw_label, draw_of, oldest_version, trials_by_unit, units_of
from tasks.fan_out import FanOut, fan_out
from tasks.groups import task_group
from tasks.infra_limit import InfraLimit
from tasks.policy import RETRIES, worth_retrying
from tasks.rollouts import LABEL, Rollouts, rollouts_of
from tasks.run import RunRef
from tasks.run_trials import missing_trials
from tasks.trial_files import StoredTrial, load_trial
from tasks.verify_trials import graded
from trainer.rollout import Outcome
from trainer.serving.config import ServingConfig


@task(
    name=LABEL,
    task_run_name=LABEL,
    cache_policy=NO_CACHE,
    retries=RETRIES,
    retry_delay_seconds=5,
    retry_condition_fn=worth_retrying,
)
async def rollouter(
    run: RunRef,
    model: Path,
    data: DataConfig,
    rollout: RolloutConfig,
    sampler: SamplerConfig,
    serving: ServingConfig,
    sandbox: SandboxConfig,
    scaffold: ScaffoldConfig,
    verifier: VerifierConfig,
    budgets: BudgetConfig,
    greedy: bool,
    plugins: Sequence[str],
) -> dict[str, int]:
    """Run groups as far ahead as the ledger lets them, until it is told to stop. Returns how many are in each state.

    A try after one that failed goes on with the trials that have ended.

    Raises:
        TooManyLost: more of the trials or gradings of a draw were lost to infrastructure than `rollout` accepts.
    """
    rollouts = rollouts_of(run)
    async with (
        fan_out(
            run, model, serving, rollout.sampling, sandbox, scaffold, budgets, rollout.concurrency,
            rollout.infra_attempts, None, rollout.workers, plugins,
        ) as fan,
        task_group() as running,
    ):  # fmt: skip
        runner = _Groups(run, rollouts, fan, rollout, sandbox, verifier, budgets)
        async with rollouts.files:
            await asyncio.to_thread(runner.go_on, list(rollouts.ledger.open))
        started: list[asyncio.Task[None]] = []
        while await rollouts.room():
            group = rollouts.ledger.startable()
            if group is None:
                number, finished = rollouts.ledger.draws + 1, rollouts.ledger.version
                await asyncio.to_thread(draw_groups, run, number, finished, data, rollout, sampler, greedy)
                rollouts.ledger.submit(runner.know(draw_label(number)))
                continue
            slot = ExitStack()
            slot.enter_context(rollouts.ledger.slot(group))
            started = [trials for trials in started if not trials.done()]
            started.append(running.create_task(runner.one(group)))
            # given back whatever happens, also to a group that is cancelled before it begins
            started[-1].add_done_callback(partial(_give_back, slot))
        for trials in started:
            trials.cancel()
    return rollouts.ledger.counts()


def _give_back(slot: ExitStack, _: asyncio.Task[None]) -> None:
    slot.close()


class _Groups:
    """Runs the trials of a group and grades them. Knows the groups that were drawn, and what of them has ended."""

    def __init__(
        self,
        run: RunRef,
        rollouts: Rollouts,
        fan: FanOut,
        rollout: RolloutConfig,
        sandbox: SandboxConfig,
        verifier: VerifierConfig,
        budgets: BudgetConfig,
    ) -> None:
        self._run, self._rollouts, self._fan = run, rollouts, fan
        self._rollout, self._grading = rollout, (sandbox, verifier, budgets, rollout.infra_attempts)
        self._groups: dict[str, list[Group]] = {}
        self._ended: dict[str, list[StoredTrial]] = {}
        self._limits: dict[tuple[str, str], InfraLimit] = {}

    def go_on(self, units: Sequence[str]) -> None:
        """Learn of groups that were drawn before now, and what has ended of them."""
        for draw in dict.fromkeys(map(draw_of, units)):
            self.know(draw)
            ended = trials_by_unit(self._run.journal, draw)
            self._ended |= ended
            for trial in (trial for trials in ended.values() for trial in trials):
                if trial.outcome is Outcome.INFRA_ERROR:
                    self._limits[draw, "trials"].lose(trial.record["error"])

    def know(self, draw: str) -> list[str]:
        """Read a draw. Returns the ids of its groups."""
        units = units_of(self._run.journal, draw)
        self._groups |= units
        groups = [group for unit in units.values() for group in unit]
        for what in ("trials", "gradings"):
            self._limits[draw, what] = InfraLimit(self._run, draw, groups, self._rollout.max_infra_share, what)
        return list(units)

    async def one(self, unit: str) -> None:
        """Run what is missing of a group, and complete it."""
        groups, ended = self._groups.pop(unit), self._ended.pop(unit, [])
        async with task_group() as work:
            missing = missing_trials(groups, Counter(trial.group_id for trial in ended))
            trials = [work.create_task(self._grade(trial, groups[0].task_path)) for trial in ended]
            trials += [work.create_task(self._trial(group)) for group in missing]
        oldest = await asyncio.to_thread(oldest_version, [trial.result() for trial in trials])
        await self._rollouts.complete(unit, oldest)

    async def _trial(self, group: Group) -> StoredTrial:
        draw = draw_of(group.group_id)
        folder = self._run.journal.trials_dir(draw)
        result = await self._fan.run(group, int(draw[-6:]), folder)
        if result.outcome is Outcome.INFRA_ERROR:
            self._limits[draw, "trials"].lose(result.error)
        trial = await asyncio.to_thread(load_trial, folder / result.spec.session_id)
        return await self._grade(trial, group.task_path)

    async def _grade(self, trial: StoredTrial, task_path: Path) -> StoredTrial:
        if trial.outcome is not Outcome.INFRA_ERROR:
            verdict = await graded(trial, task_path, *self._grading)
            if verdict.status is Status.INFRA_ERROR:
                self._limits[draw_of(trial.group_id), "gradings"].lose(verdict.reason)
        return trial
