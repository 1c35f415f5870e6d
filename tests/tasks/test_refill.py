"""Dynamic sampling: fresh tasks in the place of groups without signal, decided from the journal alone."""

import pytest
from support.journals import make_result, make_run, write_trial

from harness.budgets import BudgetConfig
from harness.pool.index import TaskPointer, write_index
from harness.verifier.verdict import Status
from tasks.config import DataConfig, FilterConfig, RolloutConfig
from tasks.draw import groups_path, read_draws, read_groups
from tasks.journal import JournalError
from tasks.reward import RewardConfig
from tasks.sample_pool import refill_pool, sample_pool
from tasks.verify_trials import verify_trials
from trainer.rollout import Outcome

LABEL = "step_000003"
ROLLOUT = RolloutConfig(tasks_per_step=3, attempts_per_task=2)
FILTERS = FilterConfig(drop_uniform_groups=True, refill_rounds=5)


@pytest.fixture
def pool(tmp_path):
    """Nine tasks, three a step."""
    pointers = []
    for i in range(9):
        (tmp_path / "pool" / f"task-{i}").mkdir(parents=True)
        pointers.append(TaskPointer(f"task-{i}", tmp_path / "pool" / f"task-{i}"))
    write_index(pointers, tmp_path / "pool" / "index.parquet")
    return DataConfig(train=str(tmp_path / "pool" / "index.parquet"))


async def begin(run, pool, greedy=False):
    await sample_pool.fn(run, LABEL, 3, pool, ROLLOUT, greedy)
    return run


async def refill(run, pool, number, greedy=False, **filters):
    return await refill_pool.fn(
        run, LABEL, 3, number, pool, ROLLOUT, FILTERS.model_copy(update=filters), RewardConfig(), greedy
    )


def run_groups(run, number, signal):
    """Trials of a draw: the first `signal` groups of it have one, the others all fail."""
    groups = [group for group in read_groups(groups_path(run.journal.stage_dir(LABEL), number)) if not group.greedy]
    for place, group in enumerate(groups):
        for i in range(group.attempts):
            status = Status.PASSED if place < signal and i == 0 else Status.FAILED
            write_trial(run, LABEL, make_result(f"{group.task_id}-{i}", group.group_id), status)
    return groups


def tasks_of(run):
    return [[group.task_id for group in draw] for draw in read_draws(run.journal.stage_dir(LABEL))]


async def test_each_group_without_signal_is_replaced(tmp_path, pool):
    run = await begin(make_run(tmp_path), pool)
    run_groups(run, 0, signal=1)
    first = (groups_path(run.journal.stage_dir(LABEL))).read_bytes()
    assert await refill(run, pool, 1) == 4
    run_groups(run, 1, signal=1)
    assert await refill(run, pool, 2) == 2
    run_groups(run, 2, signal=1)
    assert await refill(run, pool, 3) == 0
    drawn = tasks_of(run)
    assert [len(draw) for draw in drawn] == [3, 2, 1]
    assert len({name for draw in drawn for name in draw}) == 6
    assert (groups_path(run.journal.stage_dir(LABEL))).read_bytes() == first


async def test_enough_signal_asks_for_nothing(tmp_path, pool):
    run = await begin(make_run(tmp_path), pool)
    run_groups(run, 0, signal=3)
    assert await refill(run, pool, 1) == 0
    assert len(tasks_of(run)) == 1


async def test_a_group_that_infrastructure_took_is_replaced_too(tmp_path, pool):
    run = await begin(make_run(tmp_path), pool)
    groups = run_groups(run, 0, signal=3)
    write_trial(run, LABEL, make_result(f"{groups[0].task_id}-0", groups[0].group_id, Outcome.INFRA_ERROR), None)
    assert await refill(run, pool, 1) == 2


async def test_the_pool_runs_out(tmp_path, pool):
    run = await begin(make_run(tmp_path), pool)
    for number, left in enumerate((3, 3, 0), start=1):
        run_groups(run, number - 1, signal=0)
        assert await refill(run, pool, number) == 2 * left
    assert sorted(name for draw in tasks_of(run) for name in draw) == [f"task-{i}" for i in range(9)]


async def test_two_runs_with_the_same_trials_draw_the_same(tmp_path, pool):
    drawn = []
    for name in ("one", "two"):
        run = await begin(make_run(tmp_path, experiment=name), pool)
        run_groups(run, 0, signal=1)
        await refill(run, pool, 1)
        drawn.append(tasks_of(run))
    assert drawn[0] == drawn[1]


async def test_what_is_drawn_stands(tmp_path, pool):
    """After a crash trials of the refill may have ended already, with signal: nothing is decided anew."""
    run = await begin(make_run(tmp_path), pool)
    run_groups(run, 0, signal=1)
    assert await refill(run, pool, 1) == 4
    drawn = tasks_of(run)
    run_groups(run, 1, signal=2)
    assert await refill(run, pool, 1) == 4
    assert tasks_of(run) == drawn
    assert await refill(run, pool, 2) == 0


async def test_a_crash_before_the_draw_changes_nothing(tmp_path, pool):
    run = await begin(make_run(tmp_path), pool)
    run_groups(run, 0, signal=0)
    await refill(run, pool, 1)
    drawn = tasks_of(run)
    groups_path(run.journal.stage_dir(LABEL), 1).unlink()
    await refill(run, pool, 1)
    assert tasks_of(run) == drawn


async def test_refilled_groups_have_their_greedy_trial(tmp_path, pool):
    run = await begin(make_run(tmp_path), pool, greedy=True)
    run_groups(run, 0, signal=0)
    for group in read_groups(groups_path(run.journal.stage_dir(LABEL))):
        if group.greedy:
            write_trial(run, LABEL, make_result(f"{group.task_id}-g", group.group_id), Status.FAILED)
    assert await refill(run, pool, 1, greedy=True) == 9
    assert [group.attempts for group in read_draws(run.journal.stage_dir(LABEL))[1]] == [2, 1] * 3


async def test_grading_of_a_refill_waits_for_its_trials_only(tmp_path, pool):
    """All verdicts are there already, so that nothing has to be graded here."""
    run = await begin(make_run(tmp_path), pool)
    run_groups(run, 0, signal=1)
    await refill(run, pool, 1)
    # one trial of the refill is not there yet: the first draw's grading does not wait for it
    run_groups(run, 1, signal=2)
    assert (await verify_trials.fn(run, LABEL, None, None, BudgetConfig(), 1))["verdicts"] == {"passed": 1, "failed": 5}
    refilled = await verify_trials.fn(run, LABEL, None, None, BudgetConfig(), 1, 1)
    assert refilled["verdicts"] == {"passed": 2, "failed": 2}


async def test_grading_names_a_trial_of_no_draw(tmp_path, pool):
    run = await begin(make_run(tmp_path), pool)
    write_trial(run, LABEL, make_result("stray", f"{LABEL}/stray"))
    with pytest.raises(JournalError, match="stray: group 'step_000003/stray' is none of this round's"):
        await verify_trials.fn(run, LABEL, None, None, BudgetConfig(), 1)
