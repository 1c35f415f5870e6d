"""What breaks on the way while a pod is graded is not the policy's."""

from pathlib import Path

from support.kube import FakeCluster
from support.tasks import FIXED, write_task

from harness.patch import Patch
from harness.pool.task import Task
from harness.verifier import VerifierConfig, grade


async def test_a_broken_stream_costs_no_reward(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.fail("drop", op="run")
    cluster.fail("drop", op="write")
    task = Task.load(write_task(tmp_path))
    verifier = VerifierConfig(retries=1, guess_odds=1.0)
    verdict = await grade(task, Patch({"solution.py": FIXED.encode()}), cluster.config(), verifier)
    assert (verdict.reward, verdict.runs) == (1.0, 2), verdict
    assert cluster.pods == {}
