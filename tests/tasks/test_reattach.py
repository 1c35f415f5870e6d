"""Which engines that are up a run goes on with; real ones are killed in tests/integration/crash."""

import asyncio
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.checkpoints import write_checkpoint
from support.journals import make_run

from harness.reaper import Sweep
from harness.sandbox.owner import this_host
from tasks import orphans, reattach
from tasks.journal import step_label, write_json
from tasks.lease import lease
from tasks.wanted_replicas import ask_for_replicas
from trainer.algorithms.config import AlgorithmConfig
from trainer.learner.config import LearnerConfig
from trainer.learner.errors import LearnerError
from trainer.ownership import Owner
from trainer.serving.boot import Boot
from trainer.serving.census import Standing
from trainer.serving.config import ServingConfig

LEARNER = LearnerConfig(ranks=2)
ALGORITHM = AlgorithmConfig()
SERVING = ServingConfig(replicas=2)
BOOT = Boot("/model", SERVING, "shared_memory", 0, None)


class Rank:
    """An actor that answers with what it was booted with, or raises it."""

    def __init__(self, booted=("/model", LEARNER, ALGORITHM), updates=0, resident=True, fingerprint="f1"):
        told = {"booted": booted, "state": updates, "resident": resident, "fingerprint": fingerprint}
        for method, answer in told.items():
            setattr(self, method, SimpleNamespace(remote=lambda answer=answer: self._say(answer)))

    async def _say(self, told):
        if isinstance(told, Exception):
            raise told
        return told


@pytest.fixture
def cluster(monkeypatch):
    """Named actors by place and number, and whose they are."""
    found = SimpleNamespace(actors={}, owners={}, ended=[])

    async def end(place, numbers):
        for number in list(numbers):
            del found.actors[place][number]
            found.ended.append(f"{place}/{number}")

    for module in (reattach, orphans):
        monkeypatch.setattr(module, "find_numbered", lambda place: found.actors.get(place, {}).copy())
        monkeypatch.setattr(module, "owner_of", found.owners.get)
    monkeypatch.setattr(reattach, "end_numbered", end)
    monkeypatch.setattr(reattach, "note_owner", found.owners.__setitem__)
    monkeypatch.setattr(reattach, "release", lambda name: found.ended.append(name))
    return found


async def fault(run, config=LEARNER, model="/model"):
    return await reattach.fault_of_learner(run, model, config, ALGORITHM)


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ({}, None),
        ({0: Rank(), 1: Rank()}, None),
        ({1: Rank()}, r"of 2 ranks only \[1\] are alive"),
        ({0: Rank(), 1: Rank(LearnerError("the boot of this rank was interrupted"))}, "boot of this rank"),
        ({0: Rank(), 1: Rank(("/other", LEARNER, ALGORITHM))}, "booted with other settings"),
        ({0: Rank(updates=0), 1: Rank(updates=1)}, r"different numbers of updates: \[0, 1\]"),
        ({0: Rank(updates=1), 1: Rank(updates=1)}, "at update 1, the journal is at 0, and no checkpoint leads back"),
        ({0: Rank(updates=-1), 1: Rank(updates=-1)}, "in the middle of an update that failed"),
    ],
)
async def test_a_learner_is_used_only_if_it_is_whole(tmp_path, cluster, ranks, why):
    run = make_run(tmp_path)
    cluster.actors[f"{run.name}/learner"] = ranks
    told = await fault(run)
    if why is None:
        assert told is None
    else:
        with pytest.raises(AssertionError, match=why):
            raise AssertionError(told)


async def test_a_schedule_that_has_become_longer_wants_another_learner(tmp_path, cluster):
    run = make_run(tmp_path)
    cluster.actors[f"{run.name}/learner"] = {0: Rank(), 1: Rank()}
    assert "other settings" in await fault(run, LEARNER.over(LEARNER.lr_total_steps + 1))


async def test_a_checkpoint_leads_a_learner_back(tmp_path, cluster):
    run = make_run(tmp_path)
    cluster.actors[f"{run.name}/learner"] = {0: Rank(updates=2), 1: Rank(updates=2)}
    write_json(run.journal.stage_dir(step_label(1)) / "update.json", {})
    assert "no checkpoint leads back" in await fault(run)
    write_checkpoint(run.journal.checkpoints, 1)
    assert await fault(run) is None


@pytest.mark.parametrize(
    ("resident", "why"), [(True, "is at update 1 with other weights"), (False, None)], ids=["resident", "offloaded"]
)
async def test_weights_are_compared_where_they_are_at_hand(tmp_path, cluster, resident, why):
    """A learner that shares its GPU is offloaded while trials run; asked for its weights it would raise."""
    run = make_run(tmp_path)
    write_json(run.journal.stage_dir(step_label(1)) / "update.json", {"fingerprint": "f1"})
    away = LearnerError("asked to fingerprint, but the learner is offloaded")
    rank = {"updates": 1, "resident": resident, "fingerprint": "f2" if resident else away}
    cluster.actors[f"{run.name}/learner"] = {number: Rank(**rank) for number in (0, 1)}
    told = await fault(run)
    assert told is None if why is None else why in told


@pytest.fixture
def told(monkeypatch):
    """What each replica answers, by number: its boot, or why it gives none; and the numbers of those that leave."""
    found = SimpleNamespace(boots={}, leaving=set())

    async def boots_of(actors):
        return {number: found.boots[number] for number in actors}

    async def standings_of(actors):
        return {number: Standing(True, 0, leaving=number in found.leaving) for number in actors}

    monkeypatch.setattr(reattach, "boots_of", boots_of)
    monkeypatch.setattr(reattach, "standings_of", standings_of)
    return found


async def faults(run):
    return await reattach.faults_of_engines(run, "/model", SERVING, LEARNER, ALGORITHM)


async def test_only_what_is_ill_is_ended(tmp_path, cluster, told):
    run = make_run(tmp_path)
    cluster.actors = {
        f"{run.name}/learner": {0: Rank(), 1: Rank()},
        f"{run.name}/replica": {0: "well", 1: "dead", 2: "too many"},
    }
    told.boots = {0: BOOT, 1: LearnerError("engine is dead"), 2: BOOT}
    await reattach.end_unfit(run, "/model", SERVING, LEARNER, ALGORITHM)
    assert cluster.ended == [f"{run.name}/replica/2", f"{run.name}/replica/1"]
    assert await faults(run) == ["replica 1 is not alive"]


async def test_the_number_that_was_asked_for_counts_and_who_leaves_has_no_fault(tmp_path, cluster, told):
    run = make_run(tmp_path)
    cluster.actors = {f"{run.name}/learner": {0: Rank(), 1: Rank()}, f"{run.name}/replica": dict.fromkeys(range(3), "")}
    told.boots = {0: BOOT, 1: replace(BOOT, model="/other"), 2: LearnerError("engine is dead")}
    assert await faults(run) == ["replica 1: it was booted with other settings"]
    ask_for_replicas(run.journal.root, 1)
    assert await faults(run) == []
    ask_for_replicas(run.journal.root, 4)
    told.leaving = {1}
    assert await faults(run) == ["replica 3 is not alive", "replica 2: LearnerError: engine is dead"]
    await reattach.end_unfit_replicas(run, "/model", SERVING)
    assert cluster.ended == [f"{run.name}/replica/1", f"{run.name}/replica/2"]


async def test_who_shares_devices_boots_in_turn(tmp_path, cluster, told):
    run = make_run(tmp_path)
    colocated = SimpleNamespace(replicas=1, colocated=True)
    cluster.actors = {f"{run.name}/learner": {1: Rank()}, f"{run.name}/replica": {0: "well"}}
    told.boots = {0: replace(BOOT, config=colocated)}
    await reattach.end_unfit(run, "/model", colocated, LEARNER, ALGORITHM)
    assert cluster.ended == [f"{run.name}/learner/1", f"{run.name}/learner", f"{run.name}/replica/0"]


async def test_engines_of_a_living_run_elsewhere_are_not_taken(tmp_path, cluster):
    run, other = make_run(tmp_path / "mine"), make_run(tmp_path / "other", nonce="ffff0000")
    await reattach.claim(other)
    assert not reattach.owns(run)
    with lease(other.journal.root, "train"):
        with pytest.raises(reattach.EnginesTaken, match=r"engines named .* choose another experiment name"):
            await reattach.claim(run)
        await reattach.claim(other)
    await reattach.claim(run)
    assert reattach.owns(run) and not reattach.owns(other)


async def test_engines_that_a_dead_run_elsewhere_has_left_are_ended_at_whichever_version(tmp_path, cluster):
    run, other = make_run(tmp_path / "mine"), make_run(tmp_path / "other", nonce="ffff0000")
    for name in (run, other):
        name.journal.root.mkdir(parents=True, exist_ok=True)
    cluster.actors = {f"{run.name}/learner": {0: Rank()}, f"{run.name}/replica": {0: "well", 1: "well"}}
    await reattach.claim(other)
    await reattach.claim(other)
    assert not cluster.ended
    await reattach.claim(run)
    name = run.name
    assert cluster.ended == [f"{name}/learner/0", f"{name}/learner", f"{name}/replica/0", f"{name}/replica/1"]
    assert reattach.owns(run)


async def test_engines_of_a_journal_that_was_deleted_are_ended_and_those_of_a_run_from_another_host_kept(
    tmp_path, cluster, monkeypatch
):
    run, before = make_run(tmp_path), make_run(tmp_path, nonce="ffff0000")
    replica = {f"{run.name}/replica": {0: "well"}}
    cluster.actors = dict(replica)
    await reattach.claim(before)
    with lease(run.journal.root, "train"):
        await reattach.claim(run)
        assert cluster.ended == [f"{run.name}/learner", f"{run.name}/replica/0"]
        cluster.actors = dict(replica)
        monkeypatch.setattr(reattach, "this_host", lambda: "elsewhere.1")
        await reattach.claim(run)
    assert f"{run.name}/replica" in cluster.actors and len(cluster.ended) == 2
    assert cluster.owners[run.name].host == "elsewhere.1"


async def test_who_was_slower_asks_again(tmp_path, cluster, monkeypatch):
    """Two runs find the engines of a dead one: the one that took them while the other ended them has them."""
    run, other, third = (make_run(tmp_path / nonce, nonce=nonce) for nonce in ("aaaa", "bbbb", "cccc"))
    await reattach.claim(other)
    cluster.actors = {f"{run.name}/replica": {0: "well"}}

    async def end(place, numbers):
        cluster.actors.clear()
        cluster.owners[run.name] = reattach._me(third)

    monkeypatch.setattr(reattach, "end_numbered", end)
    with lease(third.journal.root, "train"), pytest.raises(reattach.EnginesTaken, match="cccc"):
        await reattach.claim(run)


def test_a_folder_that_cannot_be_seen_proves_nothing_but_on_this_host(tmp_path):
    def living(host, folder=tmp_path):
        return reattach.may_live(Owner(str(folder), host, "n"))

    assert living("elsewhere.1", tmp_path / "none") and not living(this_host(), tmp_path / "none")
    # a folder of this host, which only has the same name
    assert living("elsewhere.1")
    with lease(tmp_path, "train"):
        assert living("elsewhere.1") and living(this_host())
    held = {"host": "elsewhere.1", "pid": 1, "started": "x", "work": "train", "since": "x"}
    write_json(tmp_path / "lease.json", held)
    assert living("elsewhere.1")
    os.utime(tmp_path / "lease.json", (0, 0))
    assert not living("elsewhere.1")


@pytest.mark.parametrize("applied", [False, True])
def test_orphans_are_engines_whose_run_is_dead(tmp_path, cluster, monkeypatch, applied):
    dead, alive, idle = (make_run(tmp_path, experiment=name) for name in ("dead", "alive", "idle"))
    for run in (dead, alive):
        run.journal.root.mkdir(parents=True)
        cluster.actors |= {f"{run.name}/learner": {0: Rank()}, f"{run.name}/replica": {0: "well"}}
    for run in (dead, alive, idle):
        asyncio.run(reattach.claim(run))
    monkeypatch.setattr(orphans, "owned_runs", lambda: sorted(cluster.owners))
    monkeypatch.setattr(orphans, "forget_owner", cluster.owners.pop)
    monkeypatch.setattr(orphans, "ray_cluster", lambda: lease(tmp_path / "connection", "clean"))
    monkeypatch.setitem(os.environ, "RAY_ADDRESS", "10.0.0.1:6379")
    sweep = Sweep()
    with lease(alive.journal.root, "train"):
        orphans.sweep_engines(sweep, apply=applied)
    assert [leftover.name for leftover in sweep.found] == [dead.name] and not sweep.failed and not sweep.unreachable
    gone = [f"{dead.name}/learner/0", f"{dead.name}/learner", f"{dead.name}/replica/0"]
    assert cluster.ended == (gone if applied else [])
    assert (dead.name in cluster.owners) == (not applied)
