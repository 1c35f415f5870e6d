"""Sessions stick to a replica, replicas carry about equally many, and all must serve the same weights.

Replicas join and leave meanwhile, and no turn is lost by it.
"""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from support.scripted import generation

from trainer.rollout import ReleasingPolicy, Sampling
from trainer.serving import joining, seats
from trainer.serving import pool as pool_module
from trainer.serving.admission import AdmissionConfig
from trainer.serving.census import Standing
from trainer.serving.config import ServingConfig
from trainer.serving.errors import ReplicaLeaving
from trainer.serving.pool import ReplicaPool
from trainer.serving.replica import ReplicaError
from trainer.serving.speeds import ANSWERS


class Actor:
    """A Ray actor as the pool sees one: methods with `.remote` that return something to await."""

    def __init__(self, version=0, alive=True):
        self.served, self.requests, self._version, self._alive = [], [], version, alive
        self.leaving, self.up, self.syncing = False, True, False
        for name in ("generate", "version", "probe", "standing"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}_")))

    async def _generate_(self, prompt_ids, sampling, request_id):
        if self.leaving:
            raise ReplicaLeaving("leaves")
        self.requests.append(request_id)
        return generation([len(self.requests)])

    async def _version_(self):
        return self._version

    async def _standing_(self):
        return Standing(self.up, self._version, leaving=self.leaving, syncing=self.syncing)

    async def _probe_(self):
        if self.leaving:
            raise ReplicaLeaving("leaves")
        if not self._alive:
            raise ReplicaError("engine is dead")


def pool_of(*actors):
    return ReplicaPool(dict(enumerate(actors)))


async def ask(pool, *sessions):
    for session in sessions:
        await pool.generate([1], Sampling(), session)


def sessions_of(actor):
    return {request.rsplit("-", 2)[0] for request in actor.requests}


async def test_a_session_stays_on_its_replica():
    actors = [Actor(), Actor(), Actor()]
    pool = pool_of(*actors)
    names = [f"session-{i}" for i in range(9)]
    await ask(pool, *names, *reversed(names), *names)
    homes = [sessions_of(actor) for actor in actors]
    assert sorted(session for home in homes for session in home) == sorted(names)
    assert [len(home) for home in homes] == [3, 3, 3]


async def test_request_ids_never_repeat():
    actor = Actor()
    await ask(pool_of(actor), "a", "a", "b")
    assert max(Counter(actor.requests).values()) == 1


async def test_a_released_session_makes_room():
    actors = [Actor(), Actor()]
    pool = pool_of(*actors)
    await ask(pool, "a", "b", "c")
    pool.release("b")
    pool.release("never seen")
    await ask(pool, "d", "e")
    assert [sessions_of(actor) for actor in actors] == [{"a", "c"}, {"b", "d", "e"}]


async def test_a_session_is_released_once():
    actors = [Actor(), Actor()]
    pool = pool_of(*actors)
    await ask(pool, "a", "b", "c")
    for _ in range(3):
        pool.release("a")
    await ask(pool, "d")
    assert sessions_of(actors[0]) == {"a", "c", "d"}
    await ask(pool, "e")
    assert sessions_of(actors[1]) == {"b", "e"}


async def test_cancelling_stops_the_generation(monkeypatch):
    import ray

    cancelled = []
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    forever = asyncio.get_running_loop().create_future()
    actor = SimpleNamespace(generate=SimpleNamespace(remote=lambda *_: forever))
    call = asyncio.create_task(pool_of(actor).generate([1], Sampling(), "a"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert cancelled == [forever]


async def test_all_replicas_must_serve_the_version():
    pool = pool_of(Actor(version=2), Actor(version=1))
    assert await pool.versions() == [2, 1]
    with pytest.raises(ReplicaError, match=r"versions \[2, 1\], the run is at 2"):
        await pool.require_version(2)
    await pool_of(Actor(version=2), Actor(version=2)).require_version(2)


async def test_an_engine_that_is_dead_behind_its_actor_gets_no_more_sessions():
    dead, alive = Actor(alive=False), Actor()
    pool = pool_of(dead, alive)
    await pool.require_serving()
    await ask(pool, "a", "b")
    assert not dead.requests and sessions_of(alive) == {"a", "b"}
    with pytest.raises(ReplicaError, match="dead"):
        await pool_of(Actor(alive=False)).require_serving()


async def test_sessions_of_a_replica_that_dies_go_on_with_another():
    dying, alive = Actor(), Actor()
    pool = pool_of(dying, alive)
    await ask(pool, "a", "b")
    dying.generate.remote = dies
    await ask(pool, "a", "b", "c")
    assert sessions_of(alive) == {"a", "b", "c"} and sessions_of(dying) == {"a"}
    alive.generate.remote = dies
    with pytest.raises(ReplicaError, match="the last replica died"):
        await ask(pool, "a")


async def dies(*_):
    from ray.exceptions import ActorDiedError

    raise ActorDiedError


@pytest.mark.parametrize(("version", "comes_back"), [(3, True), (None, False)])
async def test_another_that_takes_its_place_gets_sessions_once_it_has_weights(monkeypatch, version, comes_back):
    """Looked for by name, as every process that samples does for itself."""
    dead, alive, fresh = Actor(), Actor(), Actor(version=version)
    monkeypatch.setattr(seats, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(seats, "find_numbered", lambda prefix: {0: fresh} if prefix == "p/e/replica" else {})
    pool = ReplicaPool({0: dead, 1: alive}, "p/e")
    dead.generate.remote = dies
    await ask(pool, "a")
    await asyncio.sleep(0.1)
    await ask(pool, "b")
    await asyncio.sleep(0.1)
    await ask(pool, "c", "d", "e")
    assert bool(fresh.requests) == comes_back


@pytest.fixture
def named(monkeypatch):
    """The replicas of `p/e` that have a name on the cluster, by number. Each process looks for them all the time."""
    found = {}
    monkeypatch.setattr(seats, "LOOK_SECONDS", 0.0)
    for module in (seats, pool_module):
        monkeypatch.setattr(module, "find_numbered", lambda prefix: found.copy() if prefix == "p/e/replica" else {})
    return found


async def looked(pool):
    await pool._seats.look()


async def test_one_that_joins_gets_new_sessions_once_it_serves(named):
    first, joins = Actor(), Actor(version=None)
    named[0] = first
    pool = await ReplicaPool.attach_serving("p/e")
    await ask(pool, "a", "b")
    named[5] = joins
    await looked(pool)
    await ask(pool, "c")
    assert not joins.requests
    joins._version = 1
    await looked(pool)
    await ask(pool, "a", "b", "c", "d", "e", "f", "g")
    assert sessions_of(first) == {"a", "b", "c", "g"} and sessions_of(joins) == {"d", "e", "f"}


async def test_sessions_of_one_that_leaves_go_on_with_others_and_it_is_asked_no_more(named):
    stays, leaves = Actor(), Actor()
    named |= {0: stays, 1: leaves}
    pool = await ReplicaPool.attach_serving("p/e")
    await ask(pool, "a", "b")
    assert sessions_of(leaves) == {"b"}
    leaves.leaving = True
    await ask(pool, "b", "c")
    await looked(pool)
    await ask(pool, "d")
    assert pool.actors == [stays] and len(leaves.requests) == 1
    assert sessions_of(stays) == {"a", "b", "c", "d"}


async def turn_of_one_that_leaves(named):
    """A replica that stays and has session a; the pool; a turn under way on one that leaves; its answer to be."""
    stays, leaves = Actor(), Actor()
    named |= {0: stays, 1: leaves}
    pool, answer = await ReplicaPool.attach_serving("p/e"), asyncio.get_running_loop().create_future()
    await ask(pool, "a")
    leaves.generate = SimpleNamespace(remote=lambda *_: answer)
    turn = asyncio.create_task(pool.generate([1], Sampling(), "b"))
    await asyncio.sleep(0.01)
    leaves.leaving = True
    return stays, pool, turn, answer


async def test_a_turn_of_one_that_leaves_is_finished(named):
    stays, pool, turn, answer = await turn_of_one_that_leaves(named)
    await looked(pool)
    answer.set_result(generation([7]))
    assert (await turn).token_ids == [7] and sessions_of(stays) == {"a"}


async def test_one_that_dies_while_it_leaves_costs_its_turn_which_is_asked_elsewhere(named):
    stays, _, turn, answer = await turn_of_one_that_leaves(named)
    del named[1]
    try:
        await dies()
    except Exception as death:
        answer.set_exception(death)
    assert (await turn).token_ids and sessions_of(stays) == {"a", "b"}


async def test_who_knows_only_those_that_leave_looks_for_others_before_giving_up(named):
    """Of a trial worker, say, that has lost sight of the one that stays."""
    leaves, stays = Actor(), Actor()
    named[1] = leaves
    pool = await ReplicaPool.attach_serving("p/e")
    leaves.leaving = True
    named[0] = stays
    await ask(pool, "a")
    assert pool.actors == [stays] and sessions_of(stays) == {"a"}
    stays.leaving = True
    with pytest.raises(ReplicaError, match="the last replica died"):
        await ask(pool, "a")


async def test_infrastructure_is_not_at_fault_where_all_that_were_known_leave(named):
    leaves, stays = Actor(), Actor()
    named[1] = leaves
    pool = await ReplicaPool.attach_serving("p/e")
    leaves.leaving = True
    named[0] = stays
    await pool.require_serving()
    assert pool.actors == [stays]


async def test_weights_go_to_those_that_stay_and_to_those_that_a_failed_sync_has_frozen(named):
    named |= {number: Actor() for number in range(4)}
    named[1].leaving = True
    named[2].leaving = named[2].syncing = True
    named[3].up = False
    staying = (await ReplicaPool.attach_staying("p/e")).actors
    assert staying == [named[0], named[2]]
    named[0].standing.remote = dies
    named[2].syncing = False
    with pytest.raises(ReplicaError, match="no replica of p/e is alive"):
        await ReplicaPool.attach_staying("p/e")


@pytest.mark.parametrize(
    ("wanted", "room", "booted"), [(None, 0, [0, 1]), (1, 0, [0]), (4, 9, [0, 1, 2, 3]), (4, 1, [0, 1, 2])]
)
async def test_a_start_boots_as_many_as_are_wanted_and_does_not_wait_for_room(
    named, monkeypatch, tmp_path, wanted, room, booted
):
    rooms, boots = iter([True] * room + [False]), []

    async def has_room(gpus):
        return next(rooms)

    async def boot(actor, boot, serves=True):
        assert serves and boot.config.replicas == 2
        boots.append(actor)

    monkeypatch.setattr(joining, "has_room", has_room)
    monkeypatch.setattr(pool_module, "_find_or_start", lambda run, number, boot, device=None: (Actor(), True))
    monkeypatch.setattr(pool_module, "_boot", boot)
    pool = await ReplicaPool.start("p/e", tmp_path, ServingConfig(replicas=2), wanted=wanted)
    assert len(boots) == len(pool.actors) == len(booted)


async def test_whatever_else_is_wrong_with_one_does_not_take_it_out_of_a_sync(named):
    named |= {0: Actor(), 1: Actor()}

    async def hangs():
        raise TimeoutError

    named[1].standing.remote = hangs
    assert (await ReplicaPool.attach_staying("p/e")).actors == list(named.values())


async def test_an_engine_whose_sync_failed_is_noticed():
    with pytest.raises(ReplicaError, match="a sync failed"):
        await pool_of(Actor(version=None)).require_serving()


async def late():
    raise TimeoutError


async def test_replicas_that_have_too_much_to_do_are_not_dead():
    """A probe waits behind all that was asked before it."""
    busy, too = Actor(), Actor()
    pool = pool_of(busy, too)
    busy.probe.remote = too.probe.remote = late
    await pool.require_serving()
    assert pool.actors == [busy, too]
    too.probe = Actor().probe
    await pool.require_serving()
    assert pool.actors == [too], "where others answer, one that does not gets no more sessions"


async def test_a_sync_that_has_just_begun_is_none_that_failed():
    actor = Actor(version=None)
    actor.probe.remote = syncs_meanwhile(actor)
    await pool_of(actor).require_serving()


def syncs_meanwhile(actor):
    calls = []

    async def probe():
        calls.append(None)
        if len(calls) == 2:
            actor._version = 3

    return probe


async def test_the_proxy_sees_that_the_pool_wants_to_know_when_a_session_ends():
    assert isinstance(pool_of(Actor()), ReleasingPolicy)


async def test_a_compiled_engine_on_cpus_is_refused(tmp_path):
    with pytest.raises(ReplicaError, match=r"keeps hold of the packed weights.*set serving\.enforce_eager: true"):
        await ReplicaPool.start("run", tmp_path, ServingConfig(enforce_eager=False))


async def test_a_replica_that_is_much_slower_keeps_its_sessions_and_gets_no_new_ones():
    quick, slow = Actor(), Actor()
    answer = slow._generate_

    async def late(*request):
        await asyncio.sleep(0.02)
        return await answer(*request)

    slow.generate = SimpleNamespace(remote=late)
    pool = pool_of(quick, slow)
    await ask(pool, *["a", "b"] * ANSWERS, "c", "d", "e", "b")
    assert sessions_of(slow) == {"b"} and len(slow.requests) == ANSWERS + 1
    assert sessions_of(quick) == {"a", "c", "d", "e"}


async def test_before_a_full_replica_new_sessions_wait_and_those_inside_go_on():
    actor, usage = Actor(), 0.5

    async def cache_usage():
        return usage

    actor.cache_usage = SimpleNamespace(remote=cache_usage)
    pool = ReplicaPool({0: actor}, admission=AdmissionConfig(look_seconds=0.01))
    await ask(pool, "inside")
    usage = 0.95
    waiting = asyncio.create_task(ask(pool, "outside"))
    await ask(pool, "inside", "inside")
    await asyncio.sleep(0.05)
    assert sessions_of(actor) == {"inside"}
    usage = 0.5
    await asyncio.wait_for(waiting, 5)
    assert sessions_of(actor) == {"inside", "outside"}


async def test_a_replica_that_does_not_say_how_full_it_is_keeps_nobody_waiting():
    actor = Actor()

    async def cache_usage():
        raise ReplicaError("engine is dead")

    actor.cache_usage = SimpleNamespace(remote=cache_usage)
    await asyncio.wait_for(ask(ReplicaPool({0: actor}, admission=AdmissionConfig()), "a"), 2)
    assert actor.requests
