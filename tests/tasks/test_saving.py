"""What is deleted beside a new checkpoint, and how a run goes on while one is written."""

import asyncio

import pytest
from support.checkpoints import write_checkpoint
from support.journals import make_result, make_run, write_trial

from harness.pool.sampler import SamplerConfig
from harness.verifier.verdict import Status
from tasks.journal import JournalError, eval_label, step_label, write_json
from tasks.progress import watching
from tasks.recover import _require_sampler
from tasks.retention import apply_retention, scores_of
from tasks.save_checkpoint import SAMPLER, Saving, sampler_digest, saving
from trainer.learner.checkpoint import CheckpointError, list_checkpoints
from trainer.learner.retention import Retention


def steps_on_disk(journal):
    return [checkpoint.step for checkpoint in list_checkpoints(journal.checkpoints)]


def record(journal, step, evaluation=None, **metrics):
    write_json(journal.stage_dir(step_label(step)) / "record.json", {"step": step, "metrics": metrics})
    if evaluation is not None:
        write_json(journal.stage_dir(eval_label(step)) / "record.json", {"step": step, "mean_reward": evaluation})


def test_the_best_by_the_journal_stays_beside_the_newest(tmp_path):
    journal = make_run(tmp_path).journal
    for step, score in ((1, 0.2), (2, 0.8), (3, 0.5), (4, None)):
        write_checkpoint(journal.checkpoints, step)
        record(journal, step, score, **{"critic/score/mean": -step})
    assert apply_retention(journal, Retention(1, None, 1, "mean_reward")) == [1, 3]
    assert steps_on_disk(journal) == [2, 4]
    # a metric of the step itself
    assert apply_retention(journal, Retention(1, None, 1, "critic/score/mean")) == []
    assert apply_retention(journal, Retention(1, None, 1, "critic/score/mean", "min")) == [2]


def test_an_evaluation_that_scored_nothing_is_none(tmp_path):
    journal = make_run(tmp_path).journal
    record(journal, 1, float("nan"))
    record(journal, 2, 0.1)
    assert scores_of(journal, [1, 2, 3], "mean_reward") == {2: 0.1}


def test_a_metric_that_nobody_records_is_told(tmp_path):
    journal = make_run(tmp_path).journal
    record(journal, 1, 0.5)
    told = []
    with watching(told.append):
        assert scores_of(journal, [1], "mean_rewards") == {}
        assert scores_of(journal, [2], "mean_rewards") == {}, "nothing is recorded yet: nothing to tell"
    (event,) = told
    assert "schedule.best_metric is 'mean_rewards', which no record has; there are mean_reward" in event.text


async def test_a_step_goes_on_once_the_learner_has_been_asked():
    done = asyncio.Event()
    order = []

    async def save(asked):
        order.append("asked")
        asked.set()
        await done.wait()
        order.append("saved")

    async with saving() as current:
        asked = asyncio.Event()
        await current.start(save(asked), asked)
        current.check()
        order.append("trials")
        done.set()
    assert order == ["asked", "trials", "saved"]


async def test_the_next_save_waits_for_the_one_before():
    order = []
    written = asyncio.Event()

    async def save(name, asked):
        order.append(f"{name} asked")
        asked.set()
        await written.wait()
        order.append(name)

    async with saving() as current:
        for name in ("first", "second"):
            asked = asyncio.Event()
            asyncio.get_running_loop().call_later(0.01, written.set)
            await current.start(save(name, asked), asked)
    assert order == ["first asked", "first", "second asked", "second"]


async def test_a_save_that_never_asks_because_it_is_done_already():
    async def cached():
        return "path"

    current = Saving()
    await current.start(cached(), asyncio.Event())
    await current.end()


async def test_a_failed_write_ends_the_run_at_the_next_step():
    full = asyncio.Event()

    async def fails(asked):
        asked.set()
        await full.wait()
        raise CheckpointError("checkpoint of step 1 cannot be written")

    asked = asyncio.Event()
    steps = []
    with pytest.raises(CheckpointError, match="step 1"):
        async with saving() as current:
            await current.start(fails(asked), asked)
            for step in (2, 3, 4):
                current.check()
                steps.append(step)
                full.set()
                await asyncio.sleep(0.01)
    assert steps == [2]


async def test_a_failed_write_of_the_last_step_is_raised_at_the_end():
    async def fails(asked):
        asked.set()
        raise CheckpointError("checkpoint of step 9 cannot be written")

    asked = asyncio.Event()
    with pytest.raises(CheckpointError, match="step 9"):
        async with saving() as current:
            await current.start(fails(asked), asked)


async def test_a_run_that_fails_otherwise_leaves_no_save_behind():
    stopped = asyncio.Event()

    async def save(asked):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    asked = asyncio.Event()
    with pytest.raises(ConnectionError):
        async with saving() as current:
            await current.start(save(asked), asked)
            raise ConnectionError("engine is gone")
    assert stopped.is_set()


async def test_a_failed_write_is_told_when_the_run_fails_otherwise():
    full = asyncio.Event()

    async def fails(asked):
        asked.set()
        await full.wait()
        raise CheckpointError("checkpoint of step 1 cannot be written")

    asked, told = asyncio.Event(), []
    with watching(told.append), pytest.raises(ConnectionError):
        async with saving() as current:
            await current.start(fails(asked), asked)
            full.set()
            await asyncio.sleep(0.01)
            raise ConnectionError("engine is gone")
    (event,) = told
    assert event.text == "the last checkpoint was not written: checkpoint of step 1 cannot be written"


def test_a_checkpoint_knows_what_the_sampler_knew(tmp_path):
    run, adaptive = make_run(tmp_path), SamplerConfig(sampler="adaptive", decay=1.0)
    for step in (1, 2):
        label = step_label(step)
        write_trial(run, label, make_result(f"s{step}", f"{label}/fix-add"), Status.PASSED)
    notes = {SAMPLER: sampler_digest(run, 2, adaptive)}
    checkpoint = write_checkpoint(run.journal.checkpoints, 2, notes=notes)
    _require_sampler(run, checkpoint, adaptive)
    for kept in run.journal.root.rglob("sampler.json"):
        kept.unlink()
    _require_sampler(run, checkpoint, adaptive)
    for kept in [*run.journal.root.rglob("sampler.json"), *run.journal.root.rglob("step_000002/s2/*")]:
        kept.unlink()
    with pytest.raises(JournalError, match=r"trials are missing in .* other tasks would be drawn"):
        _require_sampler(run, checkpoint, adaptive)
