"""Archived patches get new verdicts, all of them or none."""

import json
from contextlib import asynccontextmanager

import pyarrow.parquet as pq
import pytest
from support.evaluations import RIGHT, WRONG, write_evaluation
from support.journals import make_verdict

from harness.budgets import BudgetConfig
from harness.pool.task import TaskError
from harness.sandbox import SandboxConfig
from harness.verifier import VerifierConfig
from harness.verifier.verdict import Status
from tasks import regrade as module
from tasks.journal import eval_label
from tasks.regrade import NEW, STATE, RegradeError, regrade
from tasks.trial_files import load_trial

LABEL = eval_label(4)


class Died(RuntimeError):
    """The process ends here."""


class Grader:
    """Solved is what adds; `broken` sessions cannot be graded, and it dies after `lives` gradings."""

    def __init__(self):
        self.graded, self.broken, self.lives = [], set(), 1000

    async def __call__(self, task, patch, sandbox, verifier, budgets, *, attempts, trial):
        if len(self.graded) == self.lives:
            raise Died
        self.graded.append(trial)
        if trial in self.broken:
            return make_verdict(Status.INFRA_ERROR)
        return make_verdict(Status.PASSED if patch.files["solution.py"] == RIGHT else Status.FAILED)


@pytest.fixture
def grader(monkeypatch):
    @asynccontextmanager
    async def away(sandbox):
        yield

    grader = Grader()
    monkeypatch.setattr(module, "grade_with_retries", grader)
    monkeypatch.setattr(module, "reaping", away)
    return grader


@pytest.fixture
def run(tmp_path):
    """Two solved trials that were taken for failures, one failure, one that was never graded, one without a patch."""
    return write_evaluation(
        tmp_path,
        {
            "a": [(RIGHT, Status.FAILED), (WRONG, Status.FAILED), (RIGHT, Status.INFRA_ERROR)],
            "b": [(RIGHT, Status.BROKEN), (RIGHT, None), (None, None)],
        },
    )


async def again(run, **changes):
    options = {"concurrency": 1, "infra_attempts": 1} | changes
    verifier = options.pop("verifier", VerifierConfig())
    return await regrade(run, 4, SandboxConfig(), verifier, BudgetConfig(), **options)


def record(run, name="record.json"):
    return json.loads((run.journal.stage_dir(LABEL) / name).read_text())


def statuses(run):
    trials = [load_trial(path) for path in run.journal.trials(LABEL)]
    return {trial.session_id: trial.verdict and str(trial.verdict.status) for trial in trials}


def everything(run):
    return {
        path: path.read_bytes()
        for path in run.journal.root.rglob("*")
        if path.is_file() and path.name not in (STATE, NEW) and not path.name.startswith(".")
    }


async def test_new_verdicts_and_a_new_record(run, grader):
    told = []
    found = await again(run, tell=lambda *counts: told.append(counts))
    assert statuses(run) == {
        "a-0": "passed",
        "a-1": "failed",
        "a-2": "passed",
        "b-0": "passed",
        "b-1": "passed",
        "b-2": None,
    }
    assert found.changes == {
        "broken -> passed": 1,
        "failed -> failed": 1,
        "failed -> passed": 1,
        "infra_error -> passed": 1,
        "none -> passed": 1,
    }
    assert (found.swapped, found.graded, found.failed) == (True, 5, 0)
    assert told[0] == (0, 5) and told[-1] == (5, 5)
    assert (found.before["pass_at_1"], found.after["pass_at_1"]) == (0.0, 1.0)
    assert record(run) == dict(found.after) and record(run)["regraded"] == 1
    table = pq.read_table(run.journal.stage_dir(LABEL) / "trials.parquet").to_pylist()
    assert {row["session_id"]: row["status"] for row in table} == statuses(run)
    # what was there is kept, and nothing is left half done
    assert record(run, "record.before_1.json")["pass_at_1"] == 0.0
    kept = run.journal.trials_dir(LABEL) / "b-0" / "verdict.before_1.json"
    assert json.loads(kept.read_text())["status"] == "broken"
    assert not list(run.journal.root.rglob(NEW)) and not list(run.journal.root.rglob(STATE))


async def test_a_second_time_keeps_both_earlier_ones(run, grader):
    await again(run)
    await again(run)
    folder = run.journal.trials_dir(LABEL) / "b-0"
    assert sorted(path.name for path in folder.glob("verdict.*")) == [
        "verdict.before_1.json",
        "verdict.before_2.json",
        "verdict.json",
    ]
    assert json.loads((folder / "verdict.before_1.json").read_text())["status"] == "broken"
    assert record(run)["regraded"] == 2 and record(run, "record.before_2.json")["regraded"] == 1


async def test_old_verdicts_count_until_all_are_done(run, grader):
    before = everything(run)
    grader.broken = {"b-1"}
    found = await again(run)
    assert (found.swapped, found.failed, found.graded) == (False, 1, 4)
    assert everything(run) == before
    grader.broken.clear()
    grader.graded.clear()
    assert (await again(run)).swapped
    assert grader.graded == ["b-1"], "what has a new verdict is not graded again"


async def test_one_that_was_stopped_goes_on(run, grader):
    before = everything(run)
    grader.lives = 3
    with pytest.raises(Died):
        await again(run)
    assert everything(run) == before
    grader.lives = 1000
    assert (await again(run)).swapped
    assert sorted(grader.graded) == ["a-0", "a-1", "a-2", "b-0", "b-1"]


@pytest.mark.parametrize("other", ["verifier", "tests"])
async def test_one_that_was_stopped_begins_anew_if_it_would_now_grade_otherwise(run, grader, other, tmp_path):
    grader.lives = 3
    with pytest.raises(Died):
        await again(run)
    grader.lives = 1000
    changes = {}
    if other == "verifier":
        changes["verifier"] = VerifierConfig(timeout_sec=7)
    else:
        (tmp_path / "pool" / "a" / "tests" / "more.py").write_text("x = 1\n")
    await again(run, **changes)
    assert len(grader.graded) == 3 + 5


@pytest.mark.parametrize("place", range(1, 10))
async def test_a_crash_while_verdicts_are_swapped_loses_none(run, grader, monkeypatch, place):
    """The process dies before the `place`-th file is written or moved; the next one ends with the same."""
    calls = 0

    def mortal(function):
        def call(*args):
            nonlocal calls
            calls += 1
            if calls == place:
                raise Died
            return function(*args)

        return call

    swap = module._swap
    with monkeypatch.context() as patched:

        def dying(*args):
            patched.setattr(module, "write_text", mortal(module.write_text))
            patched.setattr(module.os, "replace", mortal(module.os.replace))
            swap(*args)

        patched.setattr(module, "_swap", dying)
        with pytest.raises(Died):
            await again(run)
    graded = list(grader.graded)
    found = await again(run)
    assert grader.graded == graded, "no patch is graded twice"
    assert found.swapped and sum(found.changes.values()) == 5
    assert list(statuses(run).values()) == ["passed", "failed", "passed", "passed", "passed", None]
    assert record(run)["pass_at_1"] == 1.0 and record(run, "record.before_1.json")["pass_at_1"] == 0.0
    kept = run.journal.trials_dir(LABEL) / "b-0" / "verdict.before_1.json"
    assert json.loads(kept.read_text())["status"] == "broken"


async def test_a_snapshot_that_changed_is_refused(run, grader, tmp_path):
    before = everything(run)
    (tmp_path / "pool" / "b" / "environment" / "repo" / "new.py").write_text("x = 1\n")
    with pytest.raises(RegradeError, match=r"snapshots of 1 of 2 tasks changed .* the first b; put the pool back"):
        await again(run)
    assert everything(run) == before and not grader.graded


async def test_a_snapshot_that_changes_meanwhile_is_refused(run, grader, tmp_path):
    before = everything(run)

    def change(done, total):
        if done == 2:
            (tmp_path / "pool" / "a" / "environment" / "repo" / "solution.py").write_text("x = 1\n")

    with pytest.raises(RegradeError, match="the first a"):
        await again(run, tell=change)
    assert everything(run) == before


async def test_what_cannot_be_graded_again(run, grader, tmp_path):
    folder = run.journal.stage_dir(LABEL)
    with pytest.raises(RegradeError, match="no finished evaluation after step 5"):
        await regrade(run, 5, SandboxConfig(), VerifierConfig(), BudgetConfig(), concurrency=1, infra_attempts=1)
    patch = run.journal.trials_dir(LABEL) / "a-1" / "patch.json"
    patch.rename(patch.with_name("away"))
    with pytest.raises(RegradeError, match=r"patches of 1 of 5 trials are gone, the first of a-1"):
        await again(run)
    patch.with_name("away").rename(patch)
    with module._alone(folder), pytest.raises(RegradeError, match="being graded again by another process"):
        await again(run)
    (tmp_path / "pool" / "a" / "task.toml").unlink()
    with pytest.raises(TaskError, match=r"no task\.toml"):
        await again(run)
    (folder / "snapshots.json").unlink()
    with pytest.raises(RegradeError, match=r"no snapshots\.json, .* evaluate again"):
        await again(run)
    assert not grader.graded
