"""Several raylets on one machine stand for nodes: who is placed where, and what a lost node costs.

`TESTGRAD_ALL_NODES=1` runs it, in about a minute on a quiet machine.
"""

import asyncio
import os
import signal

import psutil
import pytest
from support import remote_policy
from support.journals import make_run
from support.raylets import raylets
from support.tasks import write_task

from harness.budgets import BudgetConfig
from harness.pool.index import TaskPointer
from harness.scaffolds.base import ScaffoldConfig
from tasks import fan_out as module
from tasks.draw import as_groups, groups_path, groups_table
from tasks.journal import write_table
from tasks.run_trials import run_trials
from tasks.trial_files import load_trial
from tasks.trial_workers import WorkersConfig
from trainer.learner.bundles import release, reserve
from trainer.learner.config import LearnerConfig
from trainer.nodes import ROLLOUT, TRAIN
from trainer.placement import NAMESPACE, find_or_start
from trainer.rollout import Sampling
from trainer.serving.config import ServingConfig

pytestmark = pytest.mark.skipif("TESTGRAD_ALL_NODES" not in os.environ, reason="TESTGRAD_ALL_NODES=1 runs it")
LABEL, TRIALS = "step_000001", 16


@pytest.fixture(scope="module")
def nodes():
    """A cluster of one node that trains, the head, and two that sample: the cluster, and these two."""
    with raylets({TRAIN: 1}, [{ROLLOUT: 1}] * 2) as (cluster, rollout):
        import ray

        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
        yield cluster, rollout
        ray.shutdown()


class Somewhere:
    def node(self):
        import ray

        return ray.get_runtime_context().get_node_id()


def test_ranks_go_to_the_node_that_trains_and_replicas_to_those_that_sample(nodes):
    import ray

    cluster, rollout = nodes
    actors = [find_or_start(f"run/{i}", Somewhere, threads=1, place="SPREAD", role=ROLLOUT)[0] for i in range(2)]
    assert {ray.get(actor.node.remote()) for actor in actors} == {node.node_id for node in rollout}
    for actor in actors:
        ray.kill(actor)
    group = reserve("run/learner", LearnerConfig())
    placed = ray.util.placement_group_table(group)["bundles_to_node_id"].values()
    release("run/learner")
    assert set(placed) == {cluster.head_node.node_id}


async def test_a_lost_node_costs_its_running_trials_and_nothing_else(nodes, sandbox, tmp_path, monkeypatch):
    cluster, (lost, kept) = nodes
    monkeypatch.setattr(module, "served_policy", remote_policy.served)
    run = make_run(tmp_path)
    groups = as_groups([TaskPointer(name, write_task(tmp_path / name)) for name in "ab"], LABEL, TRIALS // 2)
    write_table(groups_path(run.journal.stage_dir(LABEL)), groups_table(groups))

    def workers_by_raylet():
        pids = {int(path.name) for path in (run.root / remote_policy.PIDS).glob("*")} - {os.getpid()}
        return {pid: psutil.Process(pid).ppid() for pid in pids if psutil.pid_exists(pid)}

    raylets = {node: node.all_processes["raylet"][0].process.pid for node in (lost, kept)}
    running = asyncio.create_task(
        run_trials.fn(
            run, LABEL, 1, run.root, ServingConfig(), Sampling(max_tokens=300), sandbox, ScaffoldConfig(),
            BudgetConfig(backoff_sec=0.01), TRIALS, 3, workers=WorkersConfig(per_node=1, node_concurrency=4),
        )
    )  # fmt: skip
    async with asyncio.timeout(300):
        while len(run.journal.trials(LABEL)) < 3 and not running.done():
            await asyncio.sleep(0.02)
        assert not running.done() or await running
        assert set(workers_by_raylet().values()) == set(raylets.values()), "on the nodes for trials, and only there"
        ended = {path.name for path in run.journal.trials(LABEL)}
        os.kill(raylets[lost], signal.SIGKILL)  # at once: trials are short
        await asyncio.to_thread(cluster.remove_node, lost, allow_graceful=False)
        result = await running

    assert result["outcomes"]["completed"] == TRIALS
    trials = [load_trial(folder) for folder in run.journal.trials(LABEL)]
    assert ended <= {trial.session_id for trial in trials}, "what had ended stays"
    again = [trial for trial in trials if trial.record["attempt"] > 1]
    assert 1 <= len(again) <= 4, "what ran on the lost node, and nothing else, began anew"
