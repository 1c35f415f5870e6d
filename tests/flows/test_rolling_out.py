"""The rollouter beside the steps: there only where trials are sampled ahead, and its failure is the run's."""

import asyncio

import pytest
from support.journals import make_run

from flows import rolling_out as module
from flows.config import RunConfig
from flows.rolling_out import rolling_out
from tasks.rollouts import rollouts_of


@pytest.fixture
def rolling(tmp_path, monkeypatch):
    """Enters a block of a run in this mode; the rollouter is what a test makes of it."""
    run = make_run(tmp_path)

    def rolling(mode, rollouter):
        monkeypatch.setattr(module, "rollouter", rollouter)
        config = RunConfig.model_validate({"experiment": "e", "mode": mode, "rollout": {"tasks_per_step": 2}})
        return rolling_out(run, config, tmp_path, 0)

    rolling.run = run
    return rolling


async def until_stopped(run, *args):
    while await rollouts_of(run).room():
        await asyncio.sleep(0)


async def test_in_mode_sync_there_is_none(rolling):
    async with rolling("sync", None):
        with pytest.raises(KeyError):
            rollouts_of(rolling.run)


@pytest.mark.parametrize("mode", ["one_step_off", "async"])
async def test_it_is_told_to_stop_at_the_end_and_found_by_the_steps_until_then(rolling, mode):
    ended = []

    async def rollouter(run, *args):
        await until_stopped(run)
        ended.append(mode)

    async with rolling(mode, rollouter):
        assert rollouts_of(rolling.run).ledger.pace.mode == mode
    assert ended == [mode]
    with pytest.raises(KeyError):
        rollouts_of(rolling.run)


async def test_its_failure_reaches_the_step_that_waits(rolling):
    async def rollouter(run, *args):
        raise ConnectionError("engine is gone")

    with pytest.raises(ConnectionError, match="engine is gone"):
        async with rolling("async", rollouter):
            await asyncio.wait_for(rollouts_of(rolling.run).take(1), 10)


@pytest.mark.parametrize(
    ("error", "tries"),
    [(ConnectionError("the engine is away"), 4), (ValueError("the pool is empty"), 1)],
    ids=["what passes", "what does not"],
)
async def test_its_tries_count_anew_after_a_step(rolling, error, tries):
    begun = []

    async def rollouter(run, *args):
        begun.append(run)
        rollouts_of(run).ledger.version += len(begun) <= 3
        raise error

    with pytest.raises(type(error), match=str(error)):
        async with rolling("async", rollouter):
            while len(begun) < tries:
                await asyncio.sleep(0)
    assert len(begun) == tries


async def test_a_step_that_fails_stops_it(rolling):
    ended = []

    async def rollouter(run, *args):
        await until_stopped(run)
        ended.append(True)

    with pytest.raises(RuntimeError, match="the learner died"):
        async with rolling("async", rollouter):
            raise RuntimeError("the learner died")
    assert ended == [True]
