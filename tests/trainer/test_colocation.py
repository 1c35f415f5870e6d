"""Learner and replicas take turns on one device: in order, and whatever the last turn was interrupted by.

The replicas are real actor classes over a fake engine, the ranks' residency is real too; what is faked moves memory.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from trainer.colocation import learner_turn, replicas_turn
from trainer.learner.errors import LearnerError
from trainer.learner.residency import Residency
from trainer.rollout import Sampling
from trainer.serving.errors import PhaseError
from trainer.serving.phases import Memory
from trainer.serving.pool import ReplicaPool
from trainer.serving.replica import Replica


class Device:
    """Who is on it, in the order in which they came and went; learner and KV cache never together."""

    def __init__(self):
        self.there, self.log = {"learner"}, []

    def move(self, who, there):
        self.log.append(("+" if there else "-") + who)
        (self.there.add if there else self.there.discard)(who)
        assert not {"learner", "kv_cache"} <= self.there, self.log


class Engine:
    """vLLM's calls, noted on the device."""

    def __init__(self, device):
        self.device, self.version = device, "0"

    async def sleep(self, level):
        for who in ("weights", "kv_cache"):
            self.device.move(who, False)

    async def wake_up(self, tags):
        for who in tags:
            self.device.move(who, True)

    async def collective_rpc(self, method, args=()):
        return {"verified_fingerprint": ["f00"], "memory_used": [2**30 * len(self.device.there)]}.get(method)

    async def get_weight_version(self):
        return self.version

    async def update_weight_version(self, version):
        self.version = version

    def __getattr__(self, name):
        async def done(*args, **kwargs):
            return None

        return done


class Ranks:
    """A learner group of one rank."""

    def __init__(self, device):
        self.device, self.residency = device, Residency()

    async def resident(self):
        return self.residency.resident

    async def trim(self):
        self.device.log.append("trim")

    async def offload(self):
        self.residency.offload([])
        self.device.move("learner", False)
        return 0

    async def reload(self):
        self.residency.reload([])
        self.device.move("learner", True)
        return 0


class Remote:
    """An actor handle on an object of this process."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self._actor, name))


@pytest.fixture
def world(monkeypatch):
    """As `start_engines` leaves them: replicas awake, the learner offloaded."""
    base = ModuleType("vllm.distributed.weight_transfer.base")
    base.WeightTransferUpdateRequest = SimpleNamespace
    monkeypatch.setitem(sys.modules, base.__name__, base)
    device = Device()
    learner = Ranks(device)
    replica = Replica(None)
    replica._engine = Engine(device)
    learner.residency.offload([])
    device.there = {"weights", "kv_cache"}
    return SimpleNamespace(
        device=device, learner=learner, replica=replica, replicas=ReplicaPool({0: Remote(replica)}), version=0
    )


def sync_of(world, fails=False):
    async def sync():
        world.learner.residency.require("send weights")
        await world.replica.start_sync()
        world.device.log.append("sync")
        if fails:
            raise ConnectionError("lost")
        world.version += 1
        await world.replica.finish_sync(world.version, {})

    return sync


async def memory(world):
    return (await world.replicas.memories())[0]


async def test_a_step_goes_round(world):
    metrics = await learner_turn(world.learner, world.replicas)
    assert world.device.log == ["-weights", "-kv_cache", "+learner"]
    assert metrics["memory_gib/replicas_awake"] == 2 and metrics["memory_gib/replicas_asleep"] == 0
    world.device.log.clear()
    metrics = await replicas_turn(world.learner, world.replicas, sync_of(world))
    assert world.device.log == ["trim", "+weights", "sync", "-learner", "+kv_cache"]
    assert {"memory_gib/replicas_weights", "memory_gib/learner_offloaded", "timing_s/replicas_turn"} <= metrics.keys()
    assert await memory(world) is Memory.AWAKE and await world.replicas.versions() == [1]


async def test_who_has_the_turn_does_not_move(world):
    assert "memory_gib/replicas_awake" not in await replicas_turn(world.learner, world.replicas)
    assert world.device.log == []
    await learner_turn(world.learner, world.replicas)
    world.device.log.clear()
    assert await learner_turn(world.learner, world.replicas) == {}
    assert world.device.log == []


async def test_without_newer_weights_the_old_ones_wake_up(world):
    await learner_turn(world.learner, world.replicas)
    await replicas_turn(world.learner, world.replicas)
    assert world.device.log == ["-weights", "-kv_cache", "+learner", "trim", "+weights", "-learner", "+kv_cache"]
    assert await world.replicas.versions() == [0]


async def test_a_sync_at_the_start_of_a_run_takes_both_turns(world):
    await replicas_turn(world.learner, world.replicas, sync_of(world))
    moves = ["-weights", "-kv_cache", "+learner", "trim", "+weights", "sync", "-learner", "+kv_cache"]
    assert world.device.log == moves


async def test_after_a_sync_that_failed_the_next_one_goes_through(world):
    await learner_turn(world.learner, world.replicas)
    with pytest.raises(ConnectionError):
        await replicas_turn(world.learner, world.replicas, sync_of(world, fails=True))
    assert await world.replicas.versions() == [None] and await world.learner.resident()
    await replicas_turn(world.learner, world.replicas, sync_of(world))
    assert await memory(world) is Memory.AWAKE and await world.replicas.versions() == [1]


async def test_a_turn_that_ended_before_the_cache_was_back_is_finished(world):
    await learner_turn(world.learner, world.replicas)
    await world.replicas.wake_weights()
    await world.learner.offload()
    await replicas_turn(world.learner, world.replicas)
    assert await memory(world) is Memory.AWAKE


async def test_running_requests_are_not_slept_over(world):
    world.replica._phase.requests = 1
    with pytest.raises(PhaseError, match="1 requests running"):
        await learner_turn(world.learner, world.replicas)
    assert not await world.learner.resident() and world.device.log == []


async def test_an_offloaded_learner_refuses_work(world):
    with pytest.raises(LearnerError, match="asked to update, but the learner is offloaded; give it its turn first"):
        world.learner.residency.require("update")
    with pytest.raises(LearnerError, match="asked to offload, but the learner is offloaded"):
        world.learner.residency.offload([])
    world.learner.residency.reload([])
    world.learner.residency.require("update")
    with pytest.raises(LearnerError, match="not offloaded"):
        world.learner.residency.reload([])


async def test_a_sleeping_replica_refuses_to_sample(world):
    vllm, params = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    vllm.SamplingParams, params.RequestOutputKind = SimpleNamespace, SimpleNamespace(FINAL_ONLY="final")
    await learner_turn(world.learner, world.replicas)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vllm", vllm)
        patch.setitem(sys.modules, "vllm.sampling_params", params)
        with pytest.raises(PhaseError, match="asleep; wake it before sampling"):
            await world.replicas.generate([1], Sampling(max_tokens=1), "s")


async def test_replicas_that_disagree_are_named(world):
    other = Replica(None)
    other._engine = Engine(Device())
    other._phase.sleep()
    world.replicas = ReplicaPool(dict(enumerate([*world.replicas.actors, Remote(other)])))
    with pytest.raises(PhaseError, match="are asleep and awake"):
        await learner_turn(world.learner, world.replicas)
