"""A step that loses too much to infrastructure stops with a diagnosis, and makes only that again."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.journals import make_result, make_run, make_verdict, write_trial

from harness.budgets import BudgetConfig
from harness.pool.index import TaskPointer
from harness.verifier.verdict import Status
from tasks import fan_out as module
from tasks import verify_trials as grading
from tasks.draw import as_groups, groups_path, groups_table
from tasks.groups import StepOverdue
from tasks.infra_limit import STOPPED, InfraLimit, TooManyLost, make_lost_again
from tasks.journal import read_json, write_table
from tasks.policy import PERMANENT
from tasks.run_trials import run_trials
from tasks.served_policy import Served
from tasks.trial_files import load_trial
from tasks.verify_trials import verify_trials
from trainer.rollout import Outcome, Sampling
from trainer.serving.config import ServingConfig

LABEL = "step_000001"
LOST = Outcome.INFRA_ERROR


class Sound:
    """A policy that serves."""

    async def require_serving(self):
        pass


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path)
    for refill, names in enumerate(("ab", "c")):
        groups = as_groups([TaskPointer(name, tmp_path / name) for name in names], LABEL, 4)
        write_table(groups_path(run.journal.stage_dir(LABEL), refill), groups_table(groups))
    return run


@pytest.fixture
def stage(run, monkeypatch):
    """Runs the trials of a draw; `outcomes` are those of the trials to come, then they complete."""
    outcomes, launched = [], []

    async def trial(spec, *args, attempts):
        await asyncio.sleep(0)
        launched.append(spec.session_id)
        outcome = outcomes.pop(0) if outcomes else Outcome.COMPLETED
        if outcome is None:
            await asyncio.Event().wait()
        changes = {"error": f"SandboxError: no space left on device {len(launched)}"} if outcome is LOST else {}
        return replace(make_result(spec.session_id, spec.group_id, outcome, **changes), spec=spec)

    @asynccontextmanager
    async def nothing(*args, **options):
        yield Served(Sound(), None, None, 0)

    for name in ("served_policy", "reaping", "ProxyServer"):
        monkeypatch.setattr(module, name, nothing)
    monkeypatch.setattr(module, "run_trial_with_retries", trial)
    monkeypatch.setattr(module, "require_isolation", lambda sandbox: None)

    async def stage(refill=0, share=0.25, timeout=None):
        return await run_trials.fn(
            run, LABEL, 1, run.root, ServingConfig(), Sampling(), None, None, BudgetConfig(), 1, 1, refill,
            max_infra_share=share, step_timeout=timeout,
        )  # fmt: skip

    stage.outcomes, stage.launched = outcomes, launched
    return stage


def ended(run):
    return [load_trial(folder) for folder in run.journal.trials(LABEL)]


async def test_losses_within_the_share_are_borne(run, stage):
    stage.outcomes[:] = [LOST, LOST]
    assert (await stage())["outcomes"]["infra_error"] == 2
    assert not (run.journal.stage_dir(LABEL) / STOPPED).exists() and make_lost_again(run, LABEL) == 0


async def test_one_too_many_stops_the_step_at_once_with_counts_cause_and_mend(run, stage):
    stage.outcomes[:] = [Outcome.COMPLETED, LOST, LOST, LOST]
    with pytest.raises(TooManyLost, match=r"3 of 8 trials.*max_infra_share.*disk is full.*3 of 3 say.*testgrad clean"):
        await stage()
    assert len(stage.launched) == 4, "the others were not begun"
    assert issubclass(TooManyLost, PERMANENT), "another try at once mends no disk"
    stop = read_json(run.journal.stage_dir(LABEL) / STOPPED)
    assert (stop["lost"], stop["total"], stop["causes"][0]["cause"]) == (3, 8, "a disk is full")


async def test_only_what_was_lost_is_made_again(run, stage):
    stage.outcomes[:] = [Outcome.COMPLETED, LOST, LOST, LOST]
    with pytest.raises(TooManyLost):
        await stage()
    (kept,) = [trial.session_id for trial in ended(run) if trial.outcome is not LOST]
    assert make_lost_again(run, LABEL) == 3 and make_lost_again(run, LABEL) == 0
    assert [trial.session_id for trial in ended(run)] == [kept]
    stage.launched.clear()
    assert (await stage())["outcomes"]["completed"] == 8 and len(stage.launched) == 7
    assert kept in {trial.session_id for trial in ended(run)}


async def test_a_refill_that_stops_costs_the_first_draw_nothing(run, stage):
    """What was lost there is counted for good: its stage has ended, and would not be run again."""
    stage.outcomes[:] = [LOST, LOST]
    await stage()
    stage.outcomes[:] = [LOST, LOST]
    with pytest.raises(TooManyLost, match="2 of 4 trials"):
        await stage(refill=1)
    assert make_lost_again(run, LABEL) == 2
    assert sum(trial.outcome is LOST for trial in ended(run)) == 2
    assert (await stage(refill=1))["outcomes"]["completed"] == 4


async def test_gradings_count_for_themselves(run, monkeypatch):
    for i in range(4):
        for name in "ab":
            outcome = Outcome.COMPLETED if i else LOST
            write_trial(run, LABEL, make_result(f"{name}-{i}", f"{LABEL}/{name}", outcome), None)
    broken = make_verdict(Status.INFRA_ERROR, reason="docker daemon: connection refused")
    verdicts = [broken] * 3

    async def grade(*args, **options):
        return verdicts.pop(0) if verdicts else make_verdict()

    monkeypatch.setattr(grading, "grade_with_retries", grade)
    monkeypatch.setattr(grading.Task, "load", lambda path: None)
    arguments = (run, LABEL, None, None, BudgetConfig(), 1, 0, 0.25)
    with pytest.raises(TooManyLost, match="3 of 8 gradings"):
        await verify_trials.fn(*arguments)
    graded = make_lost_again(run, LABEL)
    assert graded == 3 and len(ended(run)) == 8, "trials that were lost stay, for the stage that runs them has ended"
    assert (await verify_trials.fn(*arguments))["verdicts"] == {"passed": 6}


async def test_a_step_that_takes_too_long_stops_and_goes_on(run, stage):
    stage.outcomes[:] = [Outcome.COMPLETED, Outcome.COMPLETED, None]
    with pytest.raises(StepOverdue, match=r"[0-2] of 8 trials have ended after 1 s.*rollout.step_timeout"):
        await stage(timeout=1.0)
    assert issubclass(StepOverdue, PERMANENT)
    stage.outcomes.clear()
    assert (await stage())["outcomes"]["completed"] == 8
    assert len(ended(run)) == 8 and len(stage.launched) <= 9, "the one that hung began anew, and none that had ended"


def test_without_a_share_all_may_be_lost(run):
    limit = InfraLimit(run, LABEL, as_groups([TaskPointer("a", run.root)], LABEL, 2), None)
    for _ in range(5):
        limit.lose(None)
    with pytest.raises(TooManyLost, match="no text"):
        InfraLimit(run, LABEL, [], 0.0).lose(None)
