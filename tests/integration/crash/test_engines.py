"""Real engines that are killed: the others go on, and what takes a dead one's place serves nothing of long ago.

A minute and a half: `TESTGRAD_ALL_RECOVERY=1` runs it.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.journals import make_run

from tasks.keep_replicas import Keeper
from tasks.reattach import end_unfit, faults_of_engines
from trainer.algorithms.config import AlgorithmConfig
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup
from trainer.rollout import Sampling
from trainer.serving.census import LOOK_SECONDS
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("cluster"),
    pytest.mark.skipif("TESTGRAD_ALL_RECOVERY" not in os.environ, reason="TESTGRAD_ALL_RECOVERY=1 runs it"),
]

SERVING = ServingConfig(dtype="float32", window=256, replicas=2, kv_cache_gib=1)
LEARNER = LearnerConfig(dtype="float32")
ALGORITHM = AlgorithmConfig()
GREEDY = Sampling(temperature=0.0, max_tokens=8)


async def kill(actor: Any) -> None:
    os.kill(await actor.__ray_call__.remote(lambda _: os.getpid()), signal.SIGKILL)


async def test_engines_that_die_are_replaced_and_the_others_go_on(models: dict[str, Path], tmp_path: Path) -> None:
    run, model = make_run(tmp_path), models["tied"]
    pool, learner = await asyncio.gather(
        ReplicaPool.start(run.name, model, SERVING), LearnerGroup.start(run.name, model, LEARNER, ALGORITHM)
    )
    engines = (run, model, SERVING, LEARNER, ALGORITHM)
    try:
        await learner.send_weights(0, pool.actors, SERVING)
        assert await faults_of_engines(*engines) == []
        answers = [await pool.generate([1, 2, 3], GREEDY, session) for session in "ab"]

        first, second = pool.actors
        await kill(first)
        again = [await pool.generate([1, 2, 3], GREEDY, session) for session in "ab"]
        assert [answer.token_ids for answer in again] == [answer.token_ids for answer in answers]
        assert pool.actors == [second]

        keeper = Keeper(run, SERVING)
        await keeper.look()
        await keeper.booted()
        assert await ReplicaPool.attach(run.name).versions() == [None, 0]
        assert len((await ReplicaPool.attach_serving(run.name)).actors) == 1
        await learner.send_weights(0, ReplicaPool.attach(run.name).actors, SERVING)
        await asyncio.sleep(LOOK_SECONDS)
        async with asyncio.timeout(60):
            while len(pool.actors) < 2:
                await pool.generate([1, 2, 3], GREEDY, "a")
        assert (await pool.generate([1, 2, 3], GREEDY, "c")).token_ids == answers[0].token_ids
        assert await faults_of_engines(*engines) == []

        await kill(learner.actors[0])
        await kill(second)
        async with asyncio.timeout(60):
            while await faults_of_engines(*engines) != ["no learner is alive", "replica 1 is not alive"]:
                await asyncio.sleep(0.1)
        longer = LEARNER.over(LEARNER.lr_total_steps + 1)
        learner = await LearnerGroup.start(run.name, model, longer, ALGORITHM)
        assert "learner: it was booted with other settings" in await faults_of_engines(*engines)
        await end_unfit(*engines)
        assert await faults_of_engines(*engines) == ["no learner is alive", "replica 1 is not alive"]
    finally:
        await ReplicaPool.attach(run.name).shutdown()
        LearnerGroup(run.name, []).shutdown()
