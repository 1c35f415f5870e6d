"""As many replicas as are wanted: the dead are started again, others join and leave, and the slow are left alone."""

import asyncio
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError
from support.journals import make_run

from tasks import keep_replicas as module
from tasks import sync_weights
from tasks.journal import JournalError
from tasks.progress import watching
from tasks.wanted_replicas import NAME, ask_for_replicas, asked_replicas, wanted_replicas
from trainer.serving import joining
from trainer.serving.boot import Boot
from trainer.serving.census import Standing
from trainer.serving.config import ServingConfig
from trainer.serving.errors import ReplicaError

SERVING = ServingConfig(replicas=3)
BOOT = Boot("/model", SERVING, "shared_memory", 0, None)


class Actor:
    """A replica as the keeper sees one."""

    def __init__(self, boot=BOOT, **standing):
        self.boot, self.told = boot, []
        self.state = {"up": True, "version": 0} | standing
        for name in ("standing", "booted", "leave", "shutdown"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}_")))

    async def _standing_(self):
        if isinstance(self.boot, ActorDiedError):
            raise self.boot
        return Standing(**self.state)

    async def _booted_(self):
        if isinstance(self.boot, Exception):
            raise self.boot
        return self.boot

    async def _leave_(self):
        self.told.append("leave")
        self.state["leaving"] = True
        return self.state.get("turns", 0)

    async def _shutdown_(self):
        self.told.append("shutdown")


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """The actors that are up, what is done to them, and the notes of it."""
    run = make_run(tmp_path)
    found = SimpleNamespace(run=run, actors={}, ended=[], started=[], room=99, fails=None, notes=[], go_on=None)

    async def end(place, numbers):
        assert place == f"{run.name}/replica"
        for number in numbers:
            del found.actors[number]
            found.ended.append(number)

    async def start_again(name, boot, numbers):
        found.started.append((boot, list(numbers)))
        if found.go_on is not None:
            await found.go_on.wait()
        if found.fails is not None:
            raise found.fails
        placed = list(numbers)[: found.room]
        found.actors |= {number: Actor(version=None) for number in placed}
        return placed

    monkeypatch.setattr(module, "end_numbered", end)
    monkeypatch.setattr(module, "find_numbered", lambda place: dict(sorted(found.actors.items())))
    monkeypatch.setattr(module.ReplicaPool, "start_again", start_again)
    with watching(lambda event: found.notes.append(event.text)):
        yield found


async def look(keeper):
    await keeper.look()
    await keeper.booted()


@pytest.mark.parametrize(
    ("actors", "ended", "started"),
    [
        ({0: Actor(), 1: Actor(), 2: Actor()}, [], []),
        ({0: Actor(), 2: Actor()}, [], [(BOOT, [1])]),
        ({0: Actor(ReplicaError("engine is dead")), 1: Actor()}, [0], [(BOOT, [0, 2])]),
        ({0: Actor(ActorDiedError()), 1: Actor(), 2: Actor()}, [0], [(BOOT, [0])]),
        ({0: Actor(TimeoutError()), 1: Actor(), 2: Actor()}, [], []),
        ({0: Actor(ReplicaError("engine is dead"))}, [], []),
        ({}, [], []),
    ],
)
async def test_the_dead_are_replaced(cluster, actors, ended, started):
    cluster.actors = dict(actors)
    await look(module.Keeper(cluster.run, SERVING))
    assert (cluster.ended, cluster.started) == (ended, started)


async def test_one_that_dies_is_told_from_one_that_joins(cluster):
    cluster.actors = {0: Actor(), 1: Actor()}
    keeper = module.Keeper(cluster.run, SERVING)
    await look(keeper)
    assert cluster.notes == [
        "replica 2 joins: 3 are wanted. It boots, and serves from the next sync on",
        "replica 2 has booted",
    ]
    del cluster.actors[1]
    await look(keeper)
    assert cluster.notes[2] == "replica 1 died, and is started again beside the trials"


async def test_a_run_that_began_with_one_replica_gets_more(cluster):
    cluster.actors = {0: Actor()}
    keeper = module.Keeper(cluster.run, ServingConfig())
    await look(keeper)
    assert not cluster.started
    ask_for_replicas(cluster.run.journal.root, 3)
    await look(keeper)
    assert cluster.started == [(BOOT, [1, 2])] and sorted(cluster.actors) == [0, 1, 2]
    await look(keeper)
    assert len(cluster.started) == 1


async def test_those_too_many_leave_and_end_once_nobody_waits_for_them(cluster):
    stays, first, second = Actor(), Actor(turns=1), Actor()
    cluster.actors = {0: stays, 1: first, 2: second}
    ask_for_replicas(cluster.run.journal.root, 1)
    keeper = module.Keeper(cluster.run, SERVING)
    await look(keeper)
    assert (stays.told, first.told, second.told) == ([], ["leave"], ["leave"]) and not cluster.ended
    assert [note.partition(":")[0] for note in cluster.notes] == ["replica 2 leaves", "replica 1 leaves"]
    assert cluster.notes[1].endswith("It has 1 turns to finish")
    # another that goes on where this one was stopped
    keeper = module.Keeper(cluster.run, SERVING)
    await look(keeper)
    assert cluster.ended == [2] and second.told == ["leave", "shutdown"] and first.told == ["leave"]
    first.state |= {"turns": 0, "syncing": True}
    await look(keeper)
    assert cluster.ended == [2]
    first.state["syncing"] = False
    await look(keeper)
    assert cluster.ended == [2, 1] and list(cluster.actors) == [0] and not cluster.started
    assert cluster.notes[-1] == "replica 1 has left"


async def test_nobody_ends_while_weights_are_on_their_way(cluster, monkeypatch):
    cluster.actors = {0: Actor(), 1: Actor(leaving=True)}
    keeper = module.Keeper(cluster.run, ServingConfig())
    with sync_weights._sync_under_way(cluster.run.name):
        await look(keeper)
        assert not cluster.ended
    await look(keeper)
    assert cluster.ended == [1]


@pytest.mark.parametrize("stays", [Actor(version=None), Actor(ReplicaError("engine is dead")), Actor(TimeoutError())])
async def test_nobody_leaves_before_one_serves_that_stays(cluster, stays):
    leaves = Actor()
    cluster.actors = {0: stays, 1: leaves}
    keeper = module.Keeper(cluster.run, ServingConfig())
    await look(keeper)
    assert (leaves.told == ["leave"]) == isinstance(stays.boot, TimeoutError)


async def test_one_that_dies_while_it_leaves_is_not_missed(cluster):
    cluster.actors = {0: Actor(), 1: Actor(ReplicaError("engine is dead"), leaving=True, turns=3)}
    keeper = module.Keeper(cluster.run, ServingConfig())
    await look(keeper)
    assert cluster.ended == [1] and not cluster.started and not cluster.notes


async def test_one_that_leaves_and_is_wanted_again_leaves_first(cluster):
    cluster.actors = {0: Actor(), 1: Actor(leaving=True, turns=1)}
    ask_for_replicas(cluster.run.journal.root, 2)
    keeper = module.Keeper(cluster.run, ServingConfig())
    await look(keeper)
    assert not cluster.ended and not cluster.started
    cluster.actors[1].state["turns"] = 0
    await look(keeper)
    assert cluster.ended == [1] and cluster.started == [(BOOT, [1])]
    assert cluster.notes[-2].startswith("replica 1 joins")


async def test_no_room_is_told_once_and_tried_again_after_a_rest(cluster, monkeypatch):
    cluster.actors, cluster.room = {0: Actor()}, 1
    keeper = module.Keeper(cluster.run, SERVING)
    await look(keeper)
    assert sorted(cluster.actors) == [0, 1]
    lacking = "the cluster has no room for replica 2: the run goes on without"
    assert cluster.notes[1:] == [lacking, "replica 1 has booted"]
    cluster.room = 0
    await look(keeper)
    assert len(cluster.started) == 1
    monkeypatch.setattr(module, "REST", 0.0)
    keeper._next_try = 0.0
    await look(keeper)
    await look(keeper)
    assert [numbers for _, numbers in cluster.started] == [[1, 2], [2], [2]] and len(cluster.notes) == 3
    cluster.room = 1
    await look(keeper)
    assert sorted(cluster.actors) == [0, 1, 2] and cluster.notes[3:] == ["replica 2 has booted"]


async def test_a_boot_that_fails_is_told_once(cluster, monkeypatch):
    cluster.actors, cluster.fails = {0: Actor()}, ReplicaError("out of memory\nat some place")
    monkeypatch.setattr(module, "REST", 0.0)
    ask_for_replicas(cluster.run.journal.root, 2)
    keeper = module.Keeper(cluster.run, SERVING)
    await look(keeper)
    await look(keeper)
    assert len(cluster.started) == 2
    assert cluster.notes[1:] == ["replica 1 could not be started: out of memory"]


async def test_one_that_was_never_told_to_boot_is_ended_at_the_second_look(cluster):
    cluster.actors = {0: Actor(), 1: Actor(up=False, version=None)}
    ask_for_replicas(cluster.run.journal.root, 2)
    keeper = module.Keeper(cluster.run, SERVING)
    await look(keeper)
    assert not cluster.ended
    await look(keeper)
    assert cluster.ended == [1] and cluster.started == [(BOOT, [1])]


async def test_a_look_does_not_wait_for_boots_and_starts_none_twice(cluster):
    cluster.actors, cluster.go_on = {0: Actor()}, asyncio.Event()
    keeper = module.Keeper(cluster.run, SERVING)
    await keeper.look()
    await asyncio.sleep(0)
    # named while it boots, and says nothing
    cluster.actors[1] = Actor(up=False, version=None)
    await keeper.look()
    await keeper.look()
    assert len(cluster.started) == 1 and not cluster.ended
    await keeper.stop()


@pytest.fixture
def looks(monkeypatch):
    """The keepers that looked, each time that one did."""
    found = []

    async def look(keeper):
        await asyncio.sleep(0)
        found.append(keeper)

    monkeypatch.setattr(module, "PERIOD", 0.001)
    monkeypatch.setattr(module.Keeper, "look", look)
    return found


async def test_of_blocks_that_overlap_one_keeps_the_replicas(cluster, looks):
    async with module.replicas_kept(cluster.run, ServingConfig()):
        async with module.replicas_kept(cluster.run, ServingConfig()):
            await asyncio.sleep(0.05)
        before = len(looks)
        while len(looks) == before:  # the block that is left goes on looking
            await asyncio.sleep(0.001)
    assert before and len(set(map(id, looks))) == 1
    looks.clear()
    async with module.replicas_kept(cluster.run, ServingConfig(replicas=2, colocated=True)):
        await asyncio.sleep(0.05)
    assert not looks


async def test_blocks_that_are_shorter_than_a_period_are_looked_after_as_well(cluster, looks, monkeypatch):
    monkeypatch.setattr(module, "PERIOD", 0.1)
    for _ in range(20):
        async with module.replicas_kept(cluster.run, SERVING):
            await asyncio.sleep(0.02)
    assert looks


async def test_a_boot_outlasts_the_block_that_began_it_but_not_the_engines(cluster, monkeypatch):
    monkeypatch.setattr(module, "PERIOD", 0.001)
    cluster.actors, cluster.go_on = {0: Actor(), 1: Actor()}, asyncio.Event()
    async with module.replicas_kept(cluster.run, SERVING):
        while not cluster.started:
            await asyncio.sleep(0.001)
    cluster.go_on.set()
    while 2 not in cluster.actors:
        await asyncio.sleep(0.001)
    cluster.go_on.clear()
    del cluster.actors[1]
    async with module.replicas_kept(cluster.run, SERVING):
        while len(cluster.started) == 1:
            await asyncio.sleep(0.001)
    await module.stop_keeping(cluster.run.name)
    cluster.go_on.set()
    await asyncio.sleep(0.01)
    assert 1 not in cluster.actors


@pytest.mark.parametrize(("free", "placed"), [(2, [1, 2]), (1, [1]), (0, [])])
async def test_those_who_join_take_what_room_there_is(monkeypatch, free, placed):
    rooms = iter([True] * free + [False])

    async def has_room(gpus):
        return next(rooms)

    monkeypatch.setattr(joining, "has_room", has_room)
    found = await joining.find_or_place([1, 2], lambda number: (Actor(), True), 1)
    assert list(found) == placed


async def test_who_is_up_needs_no_room(monkeypatch):
    async def has_room(gpus):
        return False

    monkeypatch.setattr(joining, "has_room", has_room)
    assert list(await joining.find_or_place([1, 2], lambda number: (Actor(), False), 1, up={1: "actor"})) == [1]


async def test_an_actor_that_finds_no_place_after_all_is_given_up(monkeypatch):
    import ray

    killed, actor = [], Actor()
    monkeypatch.setattr(joining, "PLACE_SECONDS", 0.01)
    monkeypatch.setattr(ray, "kill", killed.append)
    actor.standing.remote = lambda: asyncio.sleep(5)
    assert await joining.find_or_place([1, 2], lambda number: (actor, True), 0) == {} and killed == [actor]
    # found, not made: another's, who waits for it
    assert await joining.find_or_place([1], lambda number: (actor, False), 0) == {1: (actor, False)}


def test_the_config_counts_until_somebody_asks(tmp_path):
    run, colocated = make_run(tmp_path), ServingConfig(replicas=2, colocated=True)
    assert wanted_replicas(run, SERVING) == 3 and asked_replicas(run.journal.root) is None
    ask_for_replicas(run.journal.root, 5)
    assert wanted_replicas(run, SERVING) == 5 and wanted_replicas(run, colocated) == 2


@pytest.mark.parametrize("text", ['{"replicas": 0}', '{"replicas": "2"}', "[]", '{"replicas": true}', "{"])
def test_a_number_that_cannot_be_is_refused(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(JournalError, match=r"replicas\.json"):
        asked_replicas(tmp_path)
