"""Tasks graded in pods: nothing done scores 0, the solution 1, and what breaks on the way is not the policy's."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from support.kube import FakeCluster, fake_cluster

from harness.patch import Patch, take_patch
from harness.pool.task import Task
from harness.sandbox import create_sandbox
from harness.verifier import Status, VerifierConfig, grade

FILES = {
    "instruction.md": "Repair it.",
    "environment/repo/pkg/__init__.py": "",
    "environment/repo/pkg/core.py": "def total(xs):\n    return 0\n",
    "tests/test_core.py": """\
import unittest
from pkg.core import total


class TestTotal(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(total([1, 2, 3]), 6)

    def test_none(self):
        self.assertEqual(total([]), 0)
""",
    "tests/test.sh": "exit 1\n",
    "task.toml": """\
[task]
name = "testgrad/total"
[metadata]
fail_to_pass = ["test_core.TestTotal.test_sum"]
pass_to_pass = ["test_core.TestTotal.test_none"]
""",
}
FIX = "def total(xs):\n    return sum(xs)\n"


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster() as running:
        yield running


def make_task(root: Path) -> Task:
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Task.load(root)


async def test_the_work_done_in_a_pod_is_graded_in_another(cluster: FakeCluster, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    async with create_sandbox(cluster.config()) as sandbox:
        await sandbox.upload(task.snapshot)
        assert (await take_patch(task.snapshot, sandbox)).empty
        await sandbox.exec(["sh", "-c", "cat > pkg/core.py"], timeout=20, stdin=FIX.encode())
        patch = await take_patch(task.snapshot, sandbox)
    assert dict(patch.files) == {"pkg/core.py": FIX.encode()}
    solved = await grade(task, patch, cluster.config(), VerifierConfig())
    assert (solved.reward, solved.status) == (1.0, Status.PASSED), solved
    unsolved = await grade(task, Patch(), cluster.config(), VerifierConfig())
    assert (unsolved.reward, unsolved.status) == (0.0, Status.FAILED), unsolved
    assert len(cluster.bodies) == 6  # three pods, made and deleted
    assert cluster.pods == {}


async def test_a_broken_stream_costs_no_reward(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.fail("drop", op="run")
    cluster.fail("drop", op="write")
    verdict = await grade(
        make_task(tmp_path), Patch({"pkg/core.py": FIX.encode()}), cluster.config(), VerifierConfig(retries=1)
    )
    assert (verdict.reward, verdict.runs) == (1.0, 2), verdict
    assert cluster.pods == {}
