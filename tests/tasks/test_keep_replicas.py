"""Replicas that die beside the trials are started again; the others, and those that are merely slow, are left alone."""

from types import SimpleNamespace

import pytest

from tasks import keep_replicas as module
from trainer.serving.boot import Boot
from trainer.serving.config import ServingConfig
from trainer.serving.errors import ReplicaError

SERVING = ServingConfig(replicas=3)
BOOT = Boot("/model", SERVING, "shared_memory", 0, None)


@pytest.fixture
def cluster(monkeypatch):
    """What each replica that is up answers, and what is done to them."""
    found = SimpleNamespace(told={}, ended=[], started=[])

    async def boots_of(name):
        return dict(found.told)

    async def end(place, numbers):
        found.ended += numbers
        for number in numbers:
            del found.told[number]

    async def start_again(name, boot, numbers):
        found.started.append((boot, list(numbers)))

    monkeypatch.setattr(module, "boots_of", boots_of)
    monkeypatch.setattr(module, "end_numbered", end)
    monkeypatch.setattr(module, "find_numbered", lambda place: dict(found.told))
    monkeypatch.setattr(module.ReplicaPool, "start_again", start_again)
    return found


@pytest.mark.parametrize(
    ("told", "ended", "started"),
    [
        ({0: BOOT, 1: BOOT, 2: BOOT}, [], []),
        ({0: BOOT, 2: BOOT}, [], [(BOOT, [1])]),
        ({0: ReplicaError("engine is dead"), 1: BOOT}, [0], [(BOOT, [0, 2])]),
        ({0: TimeoutError(), 1: BOOT, 2: BOOT}, [], []),
        ({}, [], []),
    ],
)
async def test_the_dead_are_replaced(cluster, told, ended, started):
    cluster.told = told
    await module.replace_dead("p/e", SERVING)
    assert (cluster.ended, cluster.started) == (ended, started)
