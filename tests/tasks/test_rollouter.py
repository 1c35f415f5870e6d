"""The rollouter and the steps that take from it: trials by a script, the journal real, and a process that dies."""

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from support.journals import make_result, make_run, make_verdict

from harness.budgets import BudgetConfig
from harness.pool.index import TaskPointer, write_index
from harness.pool.sampler import SamplerConfig
from harness.verifier.verdict import Status
from tasks import rollouter as module
from tasks.config import DataConfig, RolloutConfig
from tasks.draw import groups_path, read_groups
from tasks.draws import TAKEN, restore, units_of
from tasks.groups import to_the_end
from tasks.infra_limit import TooManyLost
from tasks.journal import step_label
from tasks.rollout_ledger import Pace
from tasks.rollouter import rollouter
from tasks.rollouts import Rollouts, live
from tasks.take_groups import take_groups
from tasks.trial_files import load_trial, store_trial, store_verdict
from trainer.algorithms.staleness import StalenessConfig
from trainer.rollout import NO_VERSION, Outcome

STEPS, GROUPS, ATTEMPTS = 3, 2, 2


class World:
    """Runs trials at once, but those of the first group once `gate` is open, if there is one."""

    def __init__(self, root):
        self.run = make_run(root)
        tasks = [TaskPointer(f"task-{i}", root / f"task-{i}") for i in range(2 * GROUPS * STEPS)]
        for task in tasks:
            task.task_path.mkdir()
        write_index(tasks, root / "index.parquet")
        self.data = DataConfig(train=str(root / "index.parquet"))
        self.rollout = RolloutConfig(tasks_per_step=GROUPS, attempts_per_task=ATTEMPTS)
        self.launched, self.gate, self.loses, self.greedy = [], None, False, False
        self.version = 0

    async def trial(self, group, step, folder):
        self.launched.append(group.group_id)
        session, version = f"{group.task_id}-{len(self.launched)}", self.version
        if self.gate is not None and group.group_id == self.launched[0]:
            await self.gate.wait()
        outcome = Outcome.INFRA_ERROR if self.loses else Outcome.COMPLETED
        result = make_result(session, group.group_id, outcome)
        result.rollouts = [
            replace(rollout, weight_versions=[version if m else NO_VERSION for m in rollout.loss_mask])
            for rollout in result.rollouts
        ]
        await to_the_end(store_trial, folder / result.spec.session_id, result)
        return result

    @asynccontextmanager
    async def flow(self, mode="async", bound=1):
        """A flow of the run: its rollouter beside the block."""
        pace = Pace(mode, GROUPS, STEPS, StalenessConfig(max_staleness=bound))
        rollouts = Rollouts(restore(self.run, pace, self.version))

        async def watched():
            try:
                return await rollouter.fn(
                    self.run, self.run.root, self.data, self.rollout, SamplerConfig(), None, None, None, None,
                    BudgetConfig(), self.greedy, (),
                )  # fmt: skip
            except Exception as error:
                await rollouts.fail(error)
                raise

        with live(self.run, rollouts):
            beside = asyncio.create_task(watched())
            try:
                yield rollouts
                await rollouts.stop()
                assert sum((await beside).values()) == sum(rollouts.ledger.counts().values())
            finally:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)

    async def step(self, rollouts, step):
        """Take the groups of a step, update and sync. Returns the ids of its groups."""
        taken = await take_groups.fn(self.run, step_label(step), step)
        self.version = step
        await rollouts.synced(step)
        groups = self.groups(step)
        trials = [load_trial(folder) for folder in self.run.journal.trials(step_label(step))]
        assert sorted(t.group_id for t in trials) == sorted(g.group_id for g in groups for _ in range(g.attempts))
        assert all(trial.verdict is not None or trial.outcome is Outcome.INFRA_ERROR for trial in trials)
        assert taken["metrics"].keys() >= {"staleness/dropped_groups"}
        return [group.group_id for group in groups]

    def groups(self, step):
        return read_groups(groups_path(self.run.journal.stage_dir(step_label(step))))


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)

    @asynccontextmanager
    async def fan_out(*args):
        class Fan:
            run = staticmethod(world.trial)

        yield Fan

    async def graded(trial, *grading):
        verdict = trial.verdict or make_verdict(Status.FAILED)
        await asyncio.to_thread(store_verdict, trial.folder, verdict)
        return verdict

    monkeypatch.setattr(module, "fan_out", fan_out)
    monkeypatch.setattr(module, "graded", graded)
    return world


async def settled(check):
    async with asyncio.timeout(120):
        while not check():
            await asyncio.sleep(0.01)


def drawn(number):
    return f"draw_{number:06d}"


async def test_one_step_off_trains_on_the_draws_of_sync_in_their_order(world):
    async with world.flow("one_step_off") as rollouts:
        steps = [await world.step(rollouts, step) for step in (1, 2, 3)]
    assert [{group.partition("/")[0] for group in groups} for groups in steps] == [{drawn(n)} for n in (1, 2, 3)]
    assert len(world.launched) == STEPS * GROUPS * ATTEMPTS, "no trial that nobody would train on"


async def test_one_step_off_does_not_run_ahead_further(world):
    async with world.flow("one_step_off") as rollouts:
        await settled(lambda: rollouts.ledger.counts()["complete"] == 2 * GROUPS)
        await take_groups.fn(world.run, step_label(1), 1)
        await asyncio.sleep(0.05)
        assert len(world.launched) == 2 * GROUPS * ATTEMPTS, "the third step's wait for the weights of the first"


async def test_async_takes_what_is_complete_and_leaves_a_straggler_to_the_next_step(world):
    world.gate = asyncio.Event()
    async with world.flow() as rollouts:
        first = await world.step(rollouts, 1)
        straggler = world.launched[0]
        assert straggler not in first and len(first) == GROUPS
        world.gate.set()
        await settled(lambda: rollouts.ledger.open[straggler].state == "complete")
        second = await world.step(rollouts, 2)
    assert straggler in second or rollouts.ledger.open[straggler].state == "complete", "first come, first trained on"


async def test_a_group_that_was_overtaken_is_dropped_and_another_takes_its_place(world):
    world.gate = asyncio.Event()
    async with world.flow() as rollouts:
        await settled(lambda: rollouts.ledger.counts()["complete"] == GROUPS - 1)
        trained = [await world.step(rollouts, 1), await world.step(rollouts, 2)]
        last = asyncio.create_task(world.step(rollouts, 3))
        await settled(lambda: len(world.launched) == STEPS * GROUPS * ATTEMPTS)
        assert not last.done(), "all that may start has started, and the straggler is missing"
        straggler = world.launched[0]
        world.gate.set()  # sampled from version 0, and version 2 is to be trained
        trained.append(await last)
    taken = world.run.journal.stage(step_label(3), TAKEN)
    assert taken["dropped"] == [straggler] and taken["metrics"]["staleness/dropped_groups"] == 1
    assert straggler not in {group for groups in trained for group in groups}
    assert len(world.run.journal.trials(drawn(1))) == ATTEMPTS
    assert restore(world.run, rollouts.ledger.pace, 3).counts() == rollouts.ledger.counts()


async def test_a_failed_rollouter_fails_the_step_that_waits(world):
    world.loses, world.rollout = True, world.rollout.model_copy(update={"max_infra_share": 0.0})
    with pytest.raises(TooManyLost, match=r"draw_00000\d: \d of 4 trials were lost"):
        async with world.flow():
            await take_groups.fn(world.run, step_label(1), 1)
    world.loses = False
    async with world.flow() as rollouts:
        assert len(await world.step(rollouts, 1)) == GROUPS, "what was lost is made again"


async def test_groups_with_a_greedy_trial_are_taken_whole(world):
    world.greedy = True
    async with world.flow() as rollouts:
        groups = await world.step(rollouts, 1)
    assert len(groups) == 2 * GROUPS and sum(group.endswith("#greedy") for group in groups) == GROUPS


@pytest.mark.parametrize("mode", ["one_step_off", "async"])
async def test_a_run_that_dies_anywhere_loses_no_trial_and_trains_on_none_twice(world, mode):
    """It is killed between trials, and while it makes a step's trials its own."""
    trained = {}
    for step in range(1, STEPS + 1):
        for after in (1, 3):
            with suppress(asyncio.CancelledError):
                async with world.flow(mode) as rollouts:
                    launched = len(world.launched)
                    await settled(lambda n=launched + after: len(world.launched) >= n or rollouts.ledger.open)
                    await asyncio.sleep(0.02)
                    raise asyncio.CancelledError
        async with world.flow(mode) as rollouts:
            trained[step] = await world.step(rollouts, step)
        (world.run.journal.stage_dir(step_label(step)) / "groups.parquet").unlink()
        before = world.run.journal.stage(step_label(step), TAKEN)
        async with world.flow(mode) as rollouts:
            await take_groups.fn(world.run, step_label(step), step)
            assert [group.group_id for group in world.groups(step)] == trained[step]
        assert world.run.journal.stage(step_label(step), TAKEN) == before
    consumed = [group for groups in trained.values() for group in groups]
    assert len(consumed) == len(set(consumed)) == STEPS * GROUPS
    ended = [folder for step in trained for folder in world.run.journal.trials(step_label(step))]
    assert len(ended) == STEPS * GROUPS * ATTEMPTS


def test_what_infrastructure_cost_before_a_restart_counts(world):
    module.draw_groups(world.run, 1, 0, world.data, world.rollout, SamplerConfig(), False)
    units = units_of(world.run.journal, drawn(1))
    (group, *_) = next(iter(units.values()))
    result = make_result("lost-0", group.group_id, Outcome.INFRA_ERROR)
    store_trial(world.run.journal.trials_dir(drawn(1)) / "lost-0", result)
    groups = module._Groups(world.run, None, None, world.rollout, None, None, None)
    groups.go_on(list(units))
    assert groups._limits[drawn(1), "trials"].errors.total() == 1
