"""Real replicas that join and leave: synced, one samples as the others do; told to leave, it finishes its turns.

A minute and a half: `TESTGRAD_ALL_RECOVERY=1` runs it.
"""

import asyncio
import os
from pathlib import Path

import pytest
from support.journals import make_run

from tasks.keep_replicas import Keeper
from tasks.progress import watching
from tasks.reattach import faults_of_engines
from tasks.sync_weights import bring_to_version
from tasks.wanted_replicas import ask_for_replicas
from trainer.algorithms.config import AlgorithmConfig
from trainer.learner.config import LearnerConfig
from trainer.learner.group import LearnerGroup
from trainer.placement import find_numbered
from trainer.rollout import Sampling
from trainer.serving import joining
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("cluster"),
    pytest.mark.skipif("TESTGRAD_ALL_RECOVERY" not in os.environ, reason="TESTGRAD_ALL_RECOVERY=1 runs it"),
]

SERVING = ServingConfig(dtype="float32", window=2048, kv_cache_gib=1)
LEARNER = LearnerConfig(dtype="float32")
ALGORITHM = AlgorithmConfig()
GREEDY = Sampling(temperature=0.0, max_tokens=8)
LONG = Sampling(temperature=0.0, max_tokens=1500, min_tokens=1500)


async def test_without_room_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "ROOM_SECONDS", 2.0)
    assert await joining.has_room(0)
    assert not await joining.has_room(1)


async def test_replicas_join_and_leave_while_answers_are_sampled(models: dict[str, Path], tmp_path: Path) -> None:
    run, model = make_run(tmp_path), models["tied"]
    place, notes = f"{run.name}/replica", list[str]()
    await asyncio.gather(
        ReplicaPool.start(run.name, model, SERVING), LearnerGroup.start(run.name, model, LEARNER, ALGORITHM)
    )
    engines = (run, model, SERVING, LEARNER, ALGORITHM)
    try:
        with watching(lambda event: notes.append(event.text)):
            done = await bring_to_version(run, 0, SERVING)
            assert done["metrics"]["rollout/replicas"] == 1
            # as a trial worker has one, which nobody tells anything; `mine` is the flow's
            mine, other = [await ReplicaPool.attach_serving(run.name) for _ in range(2)]
            expected = await mine.generate([1, 2, 3], GREEDY, "first")
            whole = await mine.generate([3, 2, 1], LONG, "first")

            ask_for_replicas(run.journal.root, 2)
            assert await faults_of_engines(*engines) == ["replica 1 is not alive"]
            keeper = Keeper(run, SERVING)
            await keeper.look()
            await keeper.booted()
            assert list(find_numbered(place)) == [0, 1] and await faults_of_engines(*engines) == []
            assert len((await ReplicaPool.attach_serving(run.name)).actors) == 1
            done = await bring_to_version(run, 0, SERVING)
            assert done["metrics"]["rollout/replicas"] == 2
            for pool in (mine, other):
                await pool._seats.look()
                assert len(pool.actors) == 2
            joined = find_numbered(place)[1]
            answer = await joined.generate.remote([1, 2, 3], GREEDY, "straight")
            assert answer.token_ids == expected.token_ids
            assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-4)

            # the first session of `other` goes to replica 0, its second to the one that is to leave
            await other.generate([1, 2, 3], GREEDY, "short")
            long = asyncio.create_task(other.generate([3, 2, 1], LONG, "long"))
            async with asyncio.timeout(30):
                while not (await joined.standing.remote()).turns:
                    await asyncio.sleep(0.01)
            ask_for_replicas(run.journal.root, 1)
            await keeper.look()
            standing = await joined.standing.remote()
            assert standing.leaving and standing.turns == 1 and not long.done()
            assert len((await ReplicaPool.attach_staying(run.name)).actors) == 1
            again = await asyncio.gather(*(mine.generate([1, 2, 3], GREEDY, session) for session in "abc"))
            assert all(one.token_ids == expected.token_ids for one in again)
            assert await faults_of_engines(*engines) == []
            await keeper.look()
            assert long.done() or list(find_numbered(place)) == [0, 1]
            answer = await long
            assert answer.token_ids == whole.token_ids and set(answer.weight_versions) == {0}

            await keeper.look()
            assert list(find_numbered(place)) == [0]
            assert (await other.generate([1, 2, 3], GREEDY, "long")).token_ids == expected.token_ids
            assert len(other.actors) == 1
            done = await bring_to_version(run, 0, SERVING)
            assert done["metrics"]["rollout/replicas"] == 1
        assert [note.partition(":")[0] for note in notes] == [
            "replica 1 joins", "replica 1 has booted", "replica 1 leaves", "replica 1 has left",
        ]  # fmt: skip
    finally:
        await ReplicaPool.attach(run.name).shutdown()
        LearnerGroup(run.name, []).shutdown()
