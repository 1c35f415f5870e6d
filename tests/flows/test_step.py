"""Trials and their grading run side by side and end together; refills follow while too few groups carry a signal."""

import asyncio
from types import SimpleNamespace

import pytest
from support.journals import make_result, make_run, write_trial

from flows import step as flow
from flows.config import RunConfig
from flows.step import both, collect_trials, for_refill
from harness.pool.index import TaskPointer, write_index
from harness.verifier.verdict import Status
from tasks.draw import Group, groups_path, groups_table, read_draws, read_groups
from tasks.journal import write_table
from tasks.policy import _key
from tasks.run_trials import run_trials


async def value(result):
    await asyncio.sleep(0)
    return result


async def fail():
    await asyncio.sleep(0)
    raise ConnectionError("engine is gone")


async def test_both_results():
    assert await both(value(1), value(2)) == (1, 2)


@pytest.mark.parametrize("first", [True, False])
async def test_a_failure_stops_the_other_and_is_raised(first):
    stopped = asyncio.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with pytest.raises(ConnectionError, match="engine is gone"):
        await (both(fail(), forever()) if first else both(forever(), fail()))
    assert stopped.is_set()


async def test_cancelling_stops_both():
    stopped = []

    async def forever(name):
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(name)

    running = asyncio.create_task(both(forever("trials"), forever("verdicts")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(stopped) == ["trials", "verdicts"]


def test_prefect_tells_refills_apart(tmp_path):
    def key(stage):
        return _key(SimpleNamespace(task=stage), {"run": make_run(tmp_path), "label": "step_000001"})

    stages = [for_refill(run_trials, refill) for refill in range(4)]
    assert stages[0] is run_trials
    assert len({key(stage) for stage in stages}) == 4
    assert stages[2].task_run_name == "run_trials_refill_2 {label}"
    assert stages[2].retries == run_trials.retries and stages[2].cache_policy is run_trials.cache_policy


class Killed(BaseException):
    pass


@pytest.fixture
def collect(tmp_path, monkeypatch):
    """Collects trials of step 1 of a pool in which only a few tasks carry a signal; stages run without Prefect."""
    pool = tmp_path / "pool"
    names = [f"task-{i}" for i in range(12)]
    for name in names:
        (pool / name).mkdir(parents=True)
    write_index([TaskPointer(name, pool / name) for name in names], pool / "index.parquet")
    launched = []

    async def trials(run, label, step, model, config, refill=0):
        groups = read_groups(groups_path(run.journal.stage_dir(label), refill))
        ended = {folder.name for folder in run.journal.trials(label)}
        for session, group, i in [(f"{g.task_id}-{i}", g, i) for g in groups for i in range(g.attempts)]:
            if session in ended:
                continue
            launched.append(session)
            if len(launched) == collect.kill_at:
                raise Killed
            passed = group.task_id in collect.signal and i == 0
            write_trial(run, label, make_result(session, group.group_id), Status.PASSED if passed else Status.FAILED)
        return {"seconds": 1.0}

    monkeypatch.setattr(flow, "graded_trials", trials)
    monkeypatch.setattr(flow, "sample_pool", flow.sample_pool.fn)
    monkeypatch.setattr(flow, "for_refill", lambda stage, refill: stage.fn)

    async def collect(experiment, refills, kill_at=None):
        launched.clear()
        collect.kill_at = kill_at
        config = RunConfig.model_validate(
            {
                "experiment": experiment,
                "data": {"train": str(pool / "index.parquet")},
                "rollout": {"tasks_per_step": 4, "attempts_per_task": 2},
                "filter": {"drop_uniform_groups": True, "refill_rounds": refills},
            }
        )
        run = make_run(tmp_path, experiment=experiment)
        try:
            result = await collect_trials(run, "step_000001", 1, tmp_path, config, False, False)
        except Killed:
            result = None
        draws = read_draws(run.journal.stage_dir("step_000001"))
        return result, [[group.task_id for group in draw] for draw in draws], list(launched)

    collect.signal = set(names[::3])
    return collect


def tasks_of(draws):
    return [task for draw in draws for task in draw]


async def test_refills_end_at_their_bound(collect):
    collect.signal = set()
    for refills in range(3):
        result, draws, launched = await collect(f"bound-{refills}", refills)
        assert result == {"seconds": 1.0 + refills}
        assert len(draws) == 1 + refills and len(launched) == 8 * (1 + refills)


async def test_refills_end_when_groups_are_enough_or_the_pool_is_tried(collect):
    _, draws, launched = await collect("some", 9)
    assert sorted(tasks_of(draws)) == sorted({session.rpartition("-")[0] for session in launched})
    found = [len(collect.signal & set(tasks_of(draws[:n]))) for n in range(1, len(draws) + 1)]
    assert all(count < 4 for count in found[:-1])
    assert [len(draw) for draw in draws[1:]] == [
        min(4 - count, 12 - len(tasks_of(draws[: n + 1]))) for n, count in enumerate(found[:-1])
    ]
    assert found[-1] == 4 or len(tasks_of(draws)) == 12


async def test_a_run_that_is_killed_anywhere_draws_and_tries_the_same(collect):
    """No trial runs twice, none is lost, and the draws are those of the run that nothing disturbed."""
    _, draws, undisturbed = await collect("whole", 3)
    assert len(draws) > 1
    for kill_at in range(1, len(undisturbed) + 1, 3):
        result, _, before = await collect(f"killed-{kill_at}", 3, kill_at)
        assert result is None
        _, again, after = await collect(f"killed-{kill_at}", 3)
        assert again == draws
        assert before[:-1] + after == undisturbed


@pytest.mark.parametrize(
    ("verdicts", "anew"),
    [([Status.PASSED, Status.FAILED], False), ([Status.PASSED, None], True), ([Status.PASSED], True)],
    ids=["all graded", "one not graded", "one missing"],
)
async def test_prefect_is_not_believed_where_a_trial_or_its_grading_is_missing(tmp_path, monkeypatch, verdicts, anew):
    """Lost trials are set aside after both stages ended, or somebody has removed a damaged file."""
    run, asked = make_run(tmp_path), []
    groups = [Group("step_000001/task", "task", tmp_path, "task", 2)]
    write_table(groups_path(run.journal.stage_dir("step_000001")), groups_table(groups))
    for number, verdict in enumerate(verdicts):
        write_trial(run, "step_000001", make_result(f"task-{number}", "step_000001/task"), verdict)

    class Stage:
        def with_options(self, **options):
            asked.append(options)
            return lambda *args, **more: value({"seconds": 1.0})

    monkeypatch.setattr(flow, "for_refill", lambda stage, refill: Stage())
    await flow.graded_trials(run, "step_000001", 1, tmp_path, RunConfig(experiment="e"))
    assert asked == [{"refresh_cache": anew}] * 2
