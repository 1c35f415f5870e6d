"""Trials in Ray workers: real sandboxes and proxies, a policy from a script, and workers that are killed midway.

The latter takes a minute or two: `TESTGRAD_ALL_RECOVERY=1` runs it.
"""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from support import remote_policy
from support.journals import make_run
from support.tasks import write_task

from harness.budgets import BudgetConfig
from harness.pool.index import TaskPointer
from harness.reaper import reap
from harness.scaffolds.base import ScaffoldConfig
from tasks import fan_out as module
from tasks.draw import as_groups, groups_path, groups_table
from tasks.journal import write_table
from tasks.run_trials import run_trials
from tasks.trial_files import load_trial
from tasks.trial_workers import WorkersConfig
from trainer.placement import ray_cluster
from trainer.rollout import Sampling
from trainer.serving.config import ServingConfig

TESTS = Path(__file__).parent.parent
LABEL = "step_000001"
TRIALS = 16


@pytest.fixture(scope="module")
def cluster():
    """A private cluster whose processes find the tests' helpers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent}")
        with ray_cluster():
            yield


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path)
    groups = as_groups([TaskPointer(name, write_task(tmp_path / name)) for name in "ab"], LABEL, TRIALS // 2)
    write_table(groups_path(run.journal.stage_dir(LABEL)), groups_table(groups))
    return run


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif("TESTGRAD_ALL_RECOVERY" not in os.environ, reason="TESTGRAD_ALL_RECOVERY=1 runs it")
async def test_workers_that_die_cost_no_trial(cluster, run, sandbox, monkeypatch):
    monkeypatch.setattr(module, "served_policy", remote_policy.served)

    def workers():
        return {int(path.name) for path in (run.root / remote_policy.PIDS).glob("*")} - {os.getpid()}

    running = asyncio.create_task(
        run_trials.fn(
            run, LABEL, 1, run.root, ServingConfig(), Sampling(max_tokens=300), sandbox, ScaffoldConfig(),
            BudgetConfig(backoff_sec=0.01), TRIALS, 3, workers=WorkersConfig(per_node=2, node_concurrency=4),
        )
    )  # fmt: skip
    async with asyncio.timeout(240):
        while len(run.journal.trials(LABEL)) < 3 and not running.done():
            await asyncio.sleep(0.02)
        assert not running.done() or await running
        before = workers()
        assert len(before) == 2, "the flow's own process ran none"
        os.kill(min(before), signal.SIGKILL)
        while len(run.journal.trials(LABEL)) < 6:
            await asyncio.sleep(0.02)
        assert not running.done(), "the other one goes on meanwhile"
        os.kill(max(before), signal.SIGKILL)
        result = await running

    assert result["outcomes"]["completed"] == TRIALS
    trials = [load_trial(folder) for folder in run.journal.trials(LABEL)]
    assert Counter(trial.record["task_id"] for trial in trials) == {"a": TRIALS // 2, "b": TRIALS // 2}
    again = [trial for trial in trials if trial.record["attempt"] > 1]
    assert 1 <= len(again) <= 4, "what the dead workers ran, and nothing else, began anew"
    assert all(trial.patch().files and len(trial.rollouts()) == 1 for trial in trials)
    assert len(workers() - before) in (1, 2), "others took their places"
    left = list(sandbox.root.iterdir())
    assert len(left) <= 4 and len(reap(sandbox).found) >= len(left)
    assert list(sandbox.root.iterdir()) == [], "what the dead ones left is found and removed"
    async with asyncio.timeout(30):
        while any(map(is_alive, workers())):
            await asyncio.sleep(0.1)


async def test_a_worker_that_cannot_start_says_why(cluster, run, sandbox, monkeypatch):
    monkeypatch.setattr(module, "served_policy", remote_policy.served)
    with pytest.raises(Exception, match="No module named 'no_such_plugin'"):
        await run_trials.fn(
            run, LABEL, 1, run.root, ServingConfig(), Sampling(), sandbox, ScaffoldConfig(), BudgetConfig(), 4, 1,
            workers=WorkersConfig(per_node=1), plugins=["no_such_plugin"],
        )  # fmt: skip
    assert run.journal.trials(LABEL) == []
