"""Tasks of an index are proven by grading, each answer once."""

import json

import pytest
from support.tasks import FIXED, write_task

from harness.pool import proofs as module
from harness.pool.environment import UnfitTask
from harness.pool.index import TaskPointer
from harness.pool.proofs import ProofConfig, prove_tasks
from harness.sandbox import ExecResult, SandboxConfig


@pytest.fixture
def rows(tmp_path):
    """One task that can be solved, one whose solution does nothing, and one that is not there."""
    found = []
    for name, solution in (("good", FIXED), ("idle", "def add(a, b):\n    return a - b\n")):
        task = write_task(tmp_path / "tasks" / name)
        (task / "solution/files").mkdir(parents=True)
        (task / "solution/files/solution.py").write_text(solution)
        found.append(TaskPointer(name, task, "test", {"kept": 1}))
    return [*found, TaskPointer("gone", tmp_path / "tasks/gone")]


async def test_each_answer_is_found_once_and_kept(rows, tmp_path, monkeypatch):
    seen = []
    config = ProofConfig(SandboxConfig())
    record = tmp_path / "record.jsonl"
    good, idle, gone = await prove_tasks(rows, config, record, seen.append)
    assert good[1].admitted and good[1].failing == ("test_solution.TestAdd.test_add",)
    assert good[0].extra.keys() == {"kept", "grading_seconds", "report_bytes"} and rows[0].extra == {"kept": 1}
    assert not idle[1].admitted and idle[1].final and "the solution is failed in grading 1" in idle[1].reason
    assert not gone[1].admitted and not gone[1].final and "no such task directory" in gone[1].reason
    assert sorted(seen) == [1, 2, 3] and len(record.read_text().splitlines()) == 2

    async def never(*_):
        raise AssertionError("graded again")

    with monkeypatch.context() as patch:
        patch.setattr(module, "first_look", never)
        assert await prove_tasks(rows, config, record) == [good, idle, gone]
        with pytest.raises(AssertionError, match="graded again"):
            await prove_tasks(rows[:1], ProofConfig(SandboxConfig(), runs=4), record)
    file = rows[1].task_path / "solution/files/solution.py"
    file.write_text(FIXED)
    (again,) = await prove_tasks(rows[1:2], config, record)
    assert again[1].admitted, "a task that changed is another task"


class Imaged:
    """A sandbox in whose image LOOK says what it is told."""

    project_python = "/opt/env/bin/python"

    def __init__(self, said):
        self.said = said

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    async def exec(self, argv, timeout):
        assert argv[0] == self.project_python
        return ExecResult(0, json.dumps(self.said).encode(), b"")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([[3, 6], []], "the image's Python is 3.6, and grading kind unittest needs 3.9"),
        ([[3, 9], [["/site", "solution-2.0.dist-info", False, False]]], "is release 2.0 of the package under test"),
        ({"a": 1}, "no list of installed packages"),
    ],
)
async def test_an_image_that_gives_the_fix_away_or_cannot_grade(rows, tmp_path, monkeypatch, said, reason):
    task = rows[0].task_path
    with (task / "task.toml").open("a") as file:
        file.write('\n[environment]\ndocker_image = "hub/x:1"\nworkdir = "/testbed"\n')
    (task / "environment/repo/setup.cfg").write_text("[metadata]\nname = solution\n")
    monkeypatch.setattr(module, "create_sandbox", lambda config: Imaged(said))
    ((_, answer),) = await prove_tasks(rows[:1], ProofConfig(SandboxConfig(backend="docker")), tmp_path / "r.jsonl")
    assert not answer.admitted and answer.final and reason in answer.reason
    with pytest.raises(UnfitTask, match="runs no images"):
        await prove_tasks(rows[:1], ProofConfig(SandboxConfig()), tmp_path / "r.jsonl")
