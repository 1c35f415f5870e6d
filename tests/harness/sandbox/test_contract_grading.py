"""Tasks worked on in one sandbox and graded in another, whatever the backend."""

from pathlib import Path

from support.sandboxes import Make

from harness.patch import Patch, take_patch
from harness.pool.task import Task
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
VERIFIER = VerifierConfig(retries=0, guess_odds=1.0)
FIX = b"def total(xs):\n    return sum(xs)\n"


def make_task(root: Path) -> Task:
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Task.load(root)


async def test_nothing_done_scores_0_and_the_solution_1(make: Make, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    sandbox = make()
    async with sandbox:
        await sandbox.upload(task.snapshot)
        assert (await take_patch(task.snapshot, sandbox)).empty
        await sandbox.exec(["sh", "-c", "cat > pkg/core.py"], timeout=60, stdin=FIX)
        patch = await take_patch(task.snapshot, sandbox)
    assert dict(patch.files) == {"pkg/core.py": FIX}
    solved = await grade(task, patch, sandbox.config, VERIFIER)
    assert (solved.reward, solved.status) == (1.0, Status.PASSED), solved
    unsolved = await grade(task, Patch(), sandbox.config, VERIFIER)
    assert (unsolved.reward, unsolved.status) == (0.0, Status.FAILED), unsolved


async def test_a_patch_that_ends_the_run_is_graded_not_excused(make: Make, tmp_path: Path) -> None:
    task = make_task(tmp_path)
    attack = b"import os; os.kill(-1, 9)"
    verdict = await grade(task, Patch({"pkg/core.py": attack}), make().config, VERIFIER)
    assert verdict.reward == 0.0 and verdict.status is not Status.INFRA_ERROR, verdict
