"""Several replicas of one policy, on real engines."""

import asyncio
from pathlib import Path

import pytest

from trainer.placement import cpu_threads
from trainer.rollout import Sampling
from trainer.serving import pool as module
from trainer.serving.boot import Boot
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool
from trainer.serving.replica import Replica

PROMPT = [5, 6, 7, 8]


async def test_replicas_draw_by_lots_of_their_own(cluster: None, models: dict[str, Path]) -> None:
    """vLLM's engines all begin with one seed: attempts at a task that go to two of them would be one and the same."""
    config = ServingConfig(replicas=2, window=2048, dtype="float32", threads=max(cpu_threads() // 2, 1))
    pool = await ReplicaPool.start("replicas/lots", models["tied"], config)
    short = Sampling(max_tokens=8, min_tokens=8)
    try:
        answers = [
            tuple((await actor.generate.remote(PROMPT, short, f"{number}-{i}")).token_ids)
            for i in range(2)
            for number, actor in enumerate(pool.actors)
        ]
        long = [
            actor.generate.remote(PROMPT, Sampling(max_tokens=1900, min_tokens=1900), "long") for actor in pool.actors
        ]
        while not all([(await actor.standing.remote()).turns for actor in pool.actors]):
            await asyncio.sleep(0.01)
        await pool.drop_requests()
        assert {answer.finish_reason for answer in await asyncio.gather(*long)} == {"abort"}
    finally:
        await pool.shutdown()
    assert len(set(answers)) == 4, answers


async def test_requests_that_wait_in_a_replica_keep_nothing_else_from_it(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync freezes all requests, and could not be finished if they held all places for calls."""

    class Busy(Replica):
        async def hold(self) -> None:
            await asyncio.sleep(600)

    monkeypatch.setattr(module, "Replica", Busy)
    boot = Boot("/none", ServingConfig(), "shared_memory", 0, None)
    actor, _ = module._find_or_start("replicas/busy", 0, boot)
    try:
        held = [actor.hold.remote() for _ in range(2000)]
        standing = await asyncio.wait_for(actor.standing.remote(), 60)
        assert not standing.up and held
    finally:
        await ReplicaPool({0: actor}).shutdown()
