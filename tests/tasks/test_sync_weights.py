"""Whom a sync reaches, and what it says of them; real weights are synced in tests/integration."""

from types import SimpleNamespace

import pytest
from support.journals import make_run

from tasks import sync_weights as module
from trainer.serving.config import ServingConfig
from trainer.serving.errors import ReplicaError


class Replica:
    def __init__(self, version):
        self.served = version
        self.version = SimpleNamespace(remote=self._version)
        self.frozen = SimpleNamespace(remote=self._frozen)

    async def _version(self):
        return self.served

    async def _frozen(self):
        return 2


class Learner:
    """Sends what it is told to whom it is told to, and sees whether somebody may end meanwhile."""

    def __init__(self):
        self.sent = []

    async def updates(self):
        return 3

    async def send_weights(self, version, replicas, serving):
        assert module.sync_under_way("project/experiment")
        self.sent.append(list(replicas))
        for replica in replicas:
            replica.served = version
        return "f00"


@pytest.fixture
def world(monkeypatch):
    learner, staying = Learner(), []

    async def attach(name):
        return module.ReplicaPool(dict(enumerate(staying)))

    monkeypatch.setattr(module.LearnerGroup, "attach", lambda name: learner)
    monkeypatch.setattr(module.ReplicaPool, "attach_staying", attach)
    return SimpleNamespace(learner=learner, staying=staying)


async def test_one_that_has_joined_is_synced_with_the_others_and_counted(tmp_path, world):
    world.staying += [Replica(3), Replica(None)]
    done = await module.bring_to_version(make_run(tmp_path), 3, ServingConfig())
    assert world.learner.sent == [world.staying] and done["fingerprint"] == "f00"
    assert done["metrics"] == {"sync/frozen_requests": 4.0, "sync/kv_kept": 0.0, "rollout/replicas": 2.0}
    assert not module.sync_under_way("project/experiment")


async def test_where_all_serve_the_version_nothing_is_sent(tmp_path, world):
    world.staying += [Replica(3)]
    done = await module.bring_to_version(make_run(tmp_path), 3, ServingConfig(replicas=2))
    assert not world.learner.sent and done["metrics"] == {"rollout/replicas": 1.0}


async def test_a_sync_that_fails_leaves_no_mark(tmp_path, world, monkeypatch):
    world.staying += [Replica(2)]

    async def fails(*_):
        raise ReplicaError("no")

    monkeypatch.setattr(world.learner, "send_weights", fails)
    with pytest.raises(ReplicaError):
        await module.bring_to_version(make_run(tmp_path), 3, ServingConfig())
    assert not module.sync_under_way("project/experiment")
