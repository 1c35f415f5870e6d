"""A broken run is the patch's doing exactly when the grading works without it; and asking costs one run per task."""

from pathlib import Path
from typing import Any

import pytest

from harness.patch import Patch
from harness.pool.task import Task
from harness.sandbox import SandboxConfig, SandboxError
from harness.verifier import Status, VerifierConfig, grade
from harness.verifier.graders.unittest_kind import UnittestGrader
from tests.support.tasks import FIXED, TEST, write_task

CRASH = Patch({"solution.py": b"import os\nos.kill(os.getpid(), 9)\n"})
ONCE = VerifierConfig(retries=0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each run of any tests."""
    seen: list[str] = []
    run = UnittestGrader.run

    async def counted(self: UnittestGrader, *words: Any) -> Any:
        seen.append(self.task.task_id)
        return await run(self, *words)

    monkeypatch.setattr(UnittestGrader, "run", counted)
    return seen


def solved(path: Path, solution: str = FIXED) -> Task:
    write_task(path)
    (path / "solution" / "files").mkdir(parents=True)
    (path / "solution" / "files" / "solution.py").write_text(solution)
    return Task.load(path)


async def test_a_bad_policy_does_not_double_the_cost(tmp_path: Path, runs: list[str]) -> None:
    task = solved(tmp_path / "one")
    for _ in range(3):
        verdict = await grade(task, CRASH, SandboxConfig(), ONCE)
        assert (verdict.status, verdict.reward, verdict.runs) == (Status.BROKEN, 0.0, 1)
    assert len(runs) == 3 + 1


async def test_a_grading_that_breaks_on_the_solution_too_is_an_infra_error(tmp_path: Path) -> None:
    task = solved(tmp_path / "one", "import missing_module\n")
    verdict = await grade(task, CRASH, SandboxConfig(), ONCE)
    assert (verdict.status, verdict.reward) == (Status.INFRA_ERROR, 0.0)
    assert "own solution is broken" in verdict.reason
    failing = await grade(task, Patch(), SandboxConfig(), ONCE)
    assert failing.status is Status.FAILED, "tests that ran to their end are believed"


async def test_without_a_solution_the_snapshot_is_asked(tmp_path: Path) -> None:
    task = Task.load(write_task(tmp_path / "one"))
    assert (await grade(task, CRASH, SandboxConfig(), ONCE)).status is Status.BROKEN
    (tmp_path / "two" / "tests").mkdir(parents=True)
    broken = write_task(tmp_path / "two")
    (broken / "tests" / "test_solution.py").write_text(f"import os\nos.kill(os.getpid(), 9)\n{TEST}")
    assert (await grade(Task.load(broken), Patch(), SandboxConfig(), ONCE)).status is Status.INFRA_ERROR


async def test_a_sandbox_that_fails_meanwhile_is_an_infra_error_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = solved(tmp_path / "one")
    calls: list[int] = []
    run = UnittestGrader.run

    async def second_fails(self: UnittestGrader, *words: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise SandboxError("the daemon is gone")
        return await run(self, *words)

    monkeypatch.setattr(UnittestGrader, "run", second_fails)
    first = await grade(task, CRASH, SandboxConfig(), ONCE)
    assert first.status is Status.INFRA_ERROR
    assert "the daemon is gone" in first.reason
    assert (await grade(task, CRASH, SandboxConfig(), ONCE)).status is Status.BROKEN
