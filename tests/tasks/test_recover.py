"""Replayed updates must be those of the journal."""

import pytest
from support.journals import make_run

from tasks.journal import JournalError, step_label, write_json
from tasks.progress import watching
from tasks.recover import _replay
from trainer.learner.rank import UpdateRecord


class Ranks:
    """As many ranks, whose updates give these fingerprints and gradient norms."""

    def __init__(self, count, outcomes):
        self.actors, self._outcomes = [None] * count, outcomes

    async def update(self, step, batch, temperature):
        fingerprint, norm = self._outcomes[step]
        return UpdateRecord(step, fingerprint, {"actor/grad_norm": norm})


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


async def test_other_ranks_may_round_otherwise_and_the_journal_then_says_so(tmp_path):
    run = make_run(tmp_path)
    journaled(run, 1, "f1", norm=1.0, ranks=2)
    told = []
    with watching(told.append):
        await _replay(run, Ranks(1, {1: ("g1", 1.001)}), 0, 1, 1.0)
    assert "update 1 was made by 2 ranks, and is now by 1" in told[-1].text
    stored = run.journal.stage(step_label(1), "update.json")
    assert (stored["fingerprint"], stored["ranks"], stored["seconds"]) == ("g1", 1, 1.0)
    await _replay(run, Ranks(1, {1: ("g1", 1.001)}), 0, 1, 1.0)


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
