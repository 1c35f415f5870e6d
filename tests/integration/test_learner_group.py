"""Ranks as Ray actors: where they run, and what becomes of them when one fails or dies."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from support.rollouts import write_batch

from trainer.algorithms.config import AlgorithmConfig
from trainer.learner.calls import RankFailure
from trainer.learner.config import LearnerConfig
from trainer.learner.errors import LearnerError
from trainer.learner.group import LearnerGroup

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("cluster")]


def alive(pid: int) -> bool:
    """Whether there is such a process, that has not ended and waits to be buried."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def test_a_dead_rank_ends_the_update_and_leaves_nothing_behind(models: dict[str, Path], tmp_path: Path) -> None:
    import ray

    config = LearnerConfig(ranks=2, dtype="float32", micro_batch_tokens=1, share_prompts="never", timeout=300)
    group = await LearnerGroup.start("group/dead", models["tied"], config, AlgorithmConfig())
    pids = [await actor.__ray_call__.remote(lambda _: os.getpid()) for actor in group.actors]

    await group.actors[1].__ray_call__.remote(lambda rank: rank.__dict__.pop("updates"))
    with pytest.raises(RankFailure, match=r"rank 1 of 2 failed in state: AttributeError: .* no attribute") as raised:
        await group.updates()
    assert "rank.py" in str(raised.value), "its own traceback"
    assert not raised.value.group_is_lost
    await group.actors[1].__ray_call__.remote(lambda rank: rank.__dict__.update(updates=0))

    batch = write_batch(tmp_path / "batch.parquet", groups=60, attempts=5)
    update = asyncio.ensure_future(group.update(1, batch, 1.0))
    await asyncio.sleep(0.5)
    assert not update.done()
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RankFailure, match=r"rank 1 of 2 died in update"):
        await asyncio.wait_for(update, 60)
    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    assert not any(map(alive, pids))
    with pytest.raises(ValueError):
        ray.util.get_placement_group("group/dead/learner")
    with pytest.raises(LearnerError, match=r"no learner of group/dead is alive"):
        LearnerGroup.attach("group/dead")


async def test_a_rank_that_cannot_start_says_why_and_leaves_nothing_behind(models: dict[str, Path]) -> None:
    import ray

    with pytest.raises(RankFailure, match=r"(?s)died in boot: .*ModuleNotFoundError: No module named 'no_such_plugin'"):
        await LearnerGroup.start("group/plugin", models["tied"], LearnerConfig(), AlgorithmConfig(), ["no_such_plugin"])
    with pytest.raises(ValueError):
        ray.util.get_placement_group("group/plugin/learner")


async def test_a_cluster_that_is_too_small_is_said_at_once(models: dict[str, Path]) -> None:
    config = LearnerConfig(ranks=2, nodes=2)
    with pytest.raises(LearnerError, match=r"learner.nodes 2, learner.ranks 2 need 2 nodes, but .* has 1 nodes"):
        await LearnerGroup.start("group/nodes", models["tied"], config, AlgorithmConfig())
    config = LearnerConfig(ranks=2, gpus_per_rank=1)
    with pytest.raises(LearnerError, match=r"need 1 nodes with 2 GPUs each, but the cluster has 1 nodes with 0 GPUs"):
        await LearnerGroup.start("group/gpus", models["tied"], config, AlgorithmConfig())
