"""Several replicas of one policy, on real engines."""

from pathlib import Path

from trainer.placement import cpu_threads
from trainer.rollout import Sampling
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool

PROMPT = [5, 6, 7, 8]


async def test_replicas_draw_by_lots_of_their_own(cluster: None, models: dict[str, Path]) -> None:
    """vLLM's engines all begin with one seed: attempts at a task that go to two of them would be one and the same."""
    config = ServingConfig(replicas=2, window=256, dtype="float32", threads=max(cpu_threads() // 2, 1))
    pool = await ReplicaPool.start("replicas/lots", models["tied"], config)
    try:
        answers = [
            tuple((await actor.generate.remote(PROMPT, Sampling(max_tokens=8), f"{number}-{i}")).token_ids)
            for i in range(2)
            for number, actor in enumerate(pool.actors)
        ]
    finally:
        await pool.shutdown()
    assert len(set(answers)) == 4, answers
