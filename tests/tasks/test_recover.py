"""Replayed updates must be those of the journal."""

import pytest
from support.checkpoints import write_checkpoint
from support.journals import make_run

from tasks.journal import JournalError, step_label, write_json
from tasks.progress import watching
from tasks.recover import _replay, _same_but_for_rounding, restore_learner
from trainer.learner.group import LearnerGroup
from trainer.learner.rank import UpdateRecord


class Ranks:
    """As many ranks, whose updates give these fingerprints and gradient norms."""

    def __init__(self, count, outcomes):
        self.actors, self._outcomes = [None] * count, outcomes

    async def update(self, step, batch, temperature, lr_total_steps):
        fingerprint, norm = self._outcomes[step]
        metrics = {} if norm is None else {"actor/grad_norm": norm}
        return UpdateRecord(step, fingerprint, metrics, lr_total_steps)


def journaled(run, step, fingerprint, norm=1.0, **more):
    known = UpdateRecord(step, fingerprint, {"actor/grad_norm": norm}).to_json() | {"seconds": 1.0} | more
    write_json(run.journal.stage_dir(step_label(step)) / "update.json", known)
    return known


async def test_the_same_weights_are_the_journals(tmp_path):
    run = make_run(tmp_path)
    known = [journaled(run, step, f"f{step}", ranks=2) for step in (1, 2)]
    await _replay(run, Ranks(2, {1: ("f1", 1.0), 2: ("f2", 1.0)}), 0, 2, 1.0)
    assert [run.journal.stage(step_label(step), "update.json") for step in (1, 2)] == known


@pytest.mark.parametrize("more", [{"ranks": 2}, {}])
async def test_other_weights_are_refused(tmp_path, more):
    run = make_run(tmp_path)
    journaled(run, 1, "f1", **more)
    with pytest.raises(JournalError, match="another machine kind or library"):
        await _replay(run, Ranks(2, {1: ("other", 1.0)}), 0, 1, 1.0)


async def test_other_adapters_are_refused_though_rounding_hides_them(tmp_path):
    run = make_run(tmp_path)
    journaled(run, 1, "f1", adapters="a1")
    with pytest.raises(JournalError, match="another machine kind or library"):
        await _replay(run, Ranks(1, {1: ("f1", 1.0)}), 0, 1, 1.0)


async def test_other_ranks_may_round_otherwise_and_the_journal_then_says_so(tmp_path):
    run = make_run(tmp_path)
    journaled(run, 1, "f1", norm=1.0, ranks=2)
    told = []
    with watching(told.append):
        await _replay(run, Ranks(1, {1: ("g1", 1.001)}), 0, 1, 1.0)
    assert "update 1 was made by 2 ranks, and is now by 1" in told[-1].text
    stored = run.journal.stage(step_label(1), "update.json")
    assert (stored["fingerprint"], stored["ranks"], stored["seconds"]) == ("g1", 1, 1.0)
    assert stored["earlier"] == [{"fingerprint": "f1", "ranks": 2}]
    await _replay(run, Ranks(1, {1: ("g1", 1.001)}), 0, 1, 1.0)
    await _replay(run, Ranks(2, {1: ("f1", 1.0)}), 0, 1, 1.0)
    stored = run.journal.stage(step_label(1), "update.json")
    assert [made["fingerprint"] for made in stored["earlier"]] == ["f1", "g1"]


async def test_an_update_may_follow_one_that_was_rounded_otherwise(tmp_path):
    """One rank goes on from a checkpoint of two, which is lost later: one rank replays them all."""
    run = make_run(tmp_path)
    journaled(run, 1, "f1", ranks=2)
    journaled(run, 2, "f2", ranks=1)
    await _replay(run, Ranks(1, {1: ("g1", 1.0), 2: ("g2", 1.001)}), 0, 2, 1.0)
    stored = [run.journal.stage(step_label(step), "update.json")["fingerprint"] for step in (1, 2)]
    assert stored == ["g1", "g2"]


async def test_a_replay_that_is_refused_leaves_the_journal_as_it_was(tmp_path):
    run = make_run(tmp_path)
    known = [journaled(run, 1, "f1", ranks=2), journaled(run, 2, "f2", ranks=2)]
    with pytest.raises(JournalError, match="another machine kind"):
        await _replay(run, Ranks(1, {1: ("g1", 1.0), 2: ("g2", 1.1)}), 0, 2, 1.0)
    assert [run.journal.stage(step_label(step), "update.json") for step in (1, 2)] == known


@pytest.mark.parametrize(("now", "accepted"), [(None, True), (1.0, False)])
async def test_an_update_that_took_no_step_on_other_ranks(tmp_path, now, accepted):
    run = make_run(tmp_path)
    known = {"step": 1, "fingerprint": "f1", "metrics": {}, "ranks": 2}
    write_json(run.journal.stage_dir(step_label(1)) / "update.json", known)
    replay = _replay(run, Ranks(1, {1: ("g1", now)}), 0, 1, 1.0)
    if accepted:
        await replay
    else:
        with pytest.raises(JournalError, match="another machine kind"):
            await replay


@pytest.mark.parametrize("name", ["actor/lr", "actor/update_tokens", "actor/skipped_steps"])
def test_rounding_changes_neither_rate_nor_tokens_nor_steps(name):
    assert not _same_but_for_rounding({"actor/grad_norm": 1.0, name: 1.0}, {"actor/grad_norm": 1.0, name: 2.0})


async def test_updates_are_replayed_with_the_schedule_that_they_were_made_with(tmp_path):
    run = make_run(tmp_path)
    journaled(run, 1, "f1", lr_total_steps=10)
    ranks = Ranks(1, {1: ("f1", 1.0)})
    asked = []
    update = ranks.update
    ranks.update = lambda *arguments: asked.append(arguments[3]) or update(*arguments)
    await _replay(run, ranks, 0, 1, 1.0)
    assert asked == [10]


@pytest.mark.parametrize(
    ("done", "where"),
    [
        (3, "is at update 3"),
        (-1, "is in the middle of an update that failed"),
        (2, "is at update 2 with other weights"),
    ],
)
async def test_a_learner_that_outlived_its_run_goes_back_to_a_checkpoint(tmp_path, monkeypatch, done, where):
    run = make_run(tmp_path)
    for step in (1, 2):
        journaled(run, step, f"f{step}")
    ranks, loaded = Ranks(1, {2: ("f2", 1.0)}), []

    async def updates():
        return done

    async def load(path):
        loaded.append(path.name)
        return 1

    async def fingerprint():
        return "of a replay that was refused"

    async def resident():
        return True

    ranks.updates, ranks.load, ranks.fingerprint, ranks.resident = updates, load, fingerprint, resident
    monkeypatch.setattr(LearnerGroup, "attach", lambda name: ranks)
    with pytest.raises(JournalError, match=f"alive {where}, the journal at 2, and no checkpoint leads back"):
        await restore_learner(run, 1.0)
    write_checkpoint(run.journal.checkpoints, 1)
    assert await restore_learner(run, 1.0) == 2
    assert loaded == ["global_step_1"]


async def test_a_learner_with_the_journals_weights_goes_on(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    for step in (1, 2):
        journaled(run, step, f"f{step}")
    write_checkpoint(run.journal.checkpoints, 1)
    ranks = Ranks(1, {2: ("f2", 1.0)})

    async def updates():
        return 1

    async def fingerprint():
        return "f1"

    async def resident():
        return True

    ranks.updates, ranks.fingerprint, ranks.resident = updates, fingerprint, resident
    monkeypatch.setattr(LearnerGroup, "attach", lambda name: ranks)
    assert await restore_learner(run, 1.0) == 2, "without a load, which these ranks cannot do"


async def test_other_ranks_may_not_have_another_gradient(tmp_path):
    run = make_run(tmp_path)
    journaled(run, 1, "f1", norm=1.0, ranks=2)
    with pytest.raises(JournalError, match="another machine kind"):
        await _replay(run, Ranks(1, {1: ("g1", 1.1)}), 0, 1, 1.0)


async def test_a_missing_update_is_told(tmp_path):
    run = make_run(tmp_path)
    journaled(run, 2, "f2")
    with pytest.raises(JournalError, match="update 1 is missing"):
        await _replay(run, Ranks(1, {}), 0, 2, 1.0)
