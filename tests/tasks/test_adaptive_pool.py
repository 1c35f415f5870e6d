"""Training steps that draw by what earlier steps told: towards mixed groups, and the same again after a restart."""

import json
import shutil
from collections import Counter

import pytest
from support.journals import make_run
from support.tasks import write_task

from harness.pool.index import TaskPointer, write_index
from harness.pool.sampler import SamplerConfig
from harness.verifier.verdict import Status
from tasks.config import DataConfig, RolloutConfig
from tasks.draw import groups_path, read_groups
from tasks.journal import step_label
from tasks.sample_pool import sample_pool
from trainer.rollout import Outcome

ROLLOUT = RolloutConfig(tasks_per_step=4, attempts_per_task=4)
ADAPTIVE = SamplerConfig(sampler="adaptive", explore=0.25)
STEPS = 12


@pytest.fixture
def data(tmp_path):
    """Tasks of which a third is never solved, a third sometimes, a third always."""
    kinds = [("never", 8), ("some", 8), ("always", 8)]
    rows = [
        TaskPointer(f"{kind}-{i}", write_task(tmp_path / "pool" / f"{kind}-{i}"))
        for kind, count in kinds
        for i in range(count)
    ]
    write_index(rows, tmp_path / "pool" / "index.parquet")
    return DataConfig(train=str(tmp_path / "pool" / "index.parquet"))


async def draw(run, step, data, sampler=ADAPTIVE):
    """What step `step` tries: the tasks' ids, in order."""
    await sample_pool.fn(run, step_label(step), step, data, ROLLOUT, False, sampler)
    return [group.task_id for group in read_groups(groups_path(run.journal.stage_dir(step_label(step))))]


def put(run, step, session, task, outcome, status):
    """What the sampler reads of a trial."""
    folder = run.journal.trials_dir(step_label(step)) / session
    folder.mkdir(parents=True)
    trial = {"task_id": task, "outcome": str(outcome), "sampling": {"temperature": 1.0}}
    (folder / "trial.json").write_text(json.dumps(trial))
    if status is not None:
        verdict = {"status": str(status), "reward": float(status is Status.PASSED)}
        (folder / "verdict.json").write_text(json.dumps(verdict))


def play(run, step, tasks):
    """The trials of a step: each attempt of a task that is solved sometimes ends otherwise than the one before."""
    for task in tasks:
        for i in range(4):
            right = task.startswith("always") or (task.startswith("some") and i % 2 == 0)
            put(run, step, f"{task}-{i}", task, Outcome.COMPLETED, Status.PASSED if right else Status.FAILED)


async def played(run, data, sampler=ADAPTIVE, steps=range(1, STEPS + 1)):
    drawn = []
    for step in steps:
        drawn.append(await draw(run, step, data, sampler))
        play(run, step, drawn[-1])
    return drawn


async def test_steps_come_to_draw_what_is_solved_sometimes(tmp_path, data):
    drawn = await played(make_run(tmp_path / "a"), data)
    late = Counter(name.partition("-")[0] for tasks in drawn[STEPS // 2 :] for name in tasks)
    evenly = await played(make_run(tmp_path / "b"), data, SamplerConfig())
    even = Counter(name.partition("-")[0] for tasks in evenly[STEPS // 2 :] for name in tasks)
    assert late["some"] > 1.5 * even["some"] and late["some"] > late.total() / 2
    assert late["never"] + late["always"] > 0, "what was lost or learned meanwhile is seen again"


async def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path, data):
    whole = await played(make_run(tmp_path / "whole"), data)
    run = make_run(tmp_path / "killed")
    await played(run, data, steps=range(1, 7))
    # killed in step 7: some of its trials have ended, and its draw was written before any of them
    seventh = await draw(run, 7, data)
    play(run, 7, seventh[:2])
    assert await draw(run, 7, data) == seventh == whole[6]
    # what is kept of the sampler's state is only a saving
    for kept in run.journal.root.rglob("sampler.json"):
        kept.unlink()
    shutil.rmtree(run.journal.trials_dir(step_label(7)))
    assert await played(run, data, steps=range(7, STEPS + 1)) == whole[6:]


async def test_trials_that_were_lost_do_not_push_a_task_away(tmp_path, data):
    """As failures they would make it look unsolvable."""
    lost, failed = make_run(tmp_path / "lost"), make_run(tmp_path / "failed")
    for step in range(1, 9):
        for i in range(8):
            put(lost, step, f"{i}", f"some-{i}", Outcome.INFRA_ERROR, None)
            put(failed, step, f"{i}", f"some-{i}", Outcome.COMPLETED, Status.FAILED)
    sampler = SamplerConfig(sampler="adaptive", explore=0.0)
    drawn = {"lost": Counter(), "failed": Counter()}
    for seed in range(20):
        other = data.model_copy(update={"seed": seed})
        for name, run in (("lost", lost), ("failed", failed)):
            drawn[name].update(task.partition("-")[0] for task in await draw(run, 9, other, sampler))
            groups_path(run.journal.stage_dir(step_label(9))).unlink()
    assert drawn["failed"]["some"] < drawn["lost"]["some"] / 2
