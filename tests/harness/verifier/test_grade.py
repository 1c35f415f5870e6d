"""What a verdict is made of, apart from attacks."""

from pathlib import Path

import pytest

from harness.patch import Patch
from harness.pool.index import read_index
from harness.pool.kata import PoolPaths
from harness.pool.kinds import REPORT_KINDS, ReportKind
from harness.pool.task import Task
from harness.sandbox import ExecResult, Sandbox, SandboxConfig
from harness.verifier import GradingError, Status, Verdict, VerdictError, VerifierConfig, grade
from harness.verifier.graders import GRADERS, Grader
from harness.verifier.report import Judgement

BASE = {
    "instruction.md": "Repair it.",
    "environment/repo/pkg/__init__.py": "",
    "environment/repo/pkg/core.py": "def total(xs):\n    return 0\n",
    "environment/repo/test/__init__.py": "",
    "tests/sub/test_core.py": """\
import json
import unittest
from pathlib import Path

from helper import DOUBLE
from pkg.core import total

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())


class TestTotal(unittest.TestCase):
\tdef setUp(self):
\t\tself.want = 6

\tdef test_sum(self):
\t\t\"\"\"A docstring,

\t\tof several lines.\"\"\"
\t\tself.assertEqual(total([1, 2, 3]), self.want)

\tdef test_cases(self):
\t\tfor xs, want in CASES:
\t\t\twith self.subTest(xs=xs):
\t\t\t\tself.assertEqual(total(xs), want)


class TestOther(unittest.IsolatedAsyncioTestCase):
\tasync def test_async(self):
\t\tself.assertTrue(total([]) == 0 and DOUBLE == 2)
""",
    "tests/sub/cases.json": "[[[1], 1], [[2, 2], 4]]",
    "tests/helper.py": "DOUBLE = 2\n",
    "tests/test.sh": "exit 1\n",
    "task.toml": """\
[task]
name = "testgrad/total"
[metadata]
fail_to_pass = ["sub.test_core.TestTotal.test_sum", "sub.test_core.TestTotal.test_cases"]
pass_to_pass = ["sub.test_core.TestOther.test_async"]
""",
}
GOLD = Patch({"pkg/core.py": b"def total(xs):\n    return sum(xs)\n"})


def make_task(root: Path, **changes: str) -> Task:
    for path, text in {**BASE, **changes}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Task.load(root)


async def run(task: Task, patch: Patch, **verifier: float) -> Verdict:
    return await grade(task, patch, SandboxConfig(), VerifierConfig(**verifier))  # type: ignore[arg-type]


async def test_folders_data_helpers_subtests_and_async_tests(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    verdict = await run(task, GOLD)
    assert verdict.status is Status.PASSED, verdict
    noop = await run(task, Patch())
    assert noop.status is Status.FAILED
    assert noop.tests == {
        "sub.test_core.TestTotal.test_sum": "failed",
        "sub.test_core.TestTotal.test_cases": "failed",
        "sub.test_core.TestOther.test_async": "passed",
    }


async def test_import_errors_are_broken_and_not_tried_again(tmp_path: Path) -> None:
    verdict = await run(make_task(tmp_path), Patch({"pkg/core.py": b"def total(\n"}), retries=3)
    assert (verdict.status, verdict.runs) == (Status.BROKEN, 1)
    assert "SyntaxError" in verdict.reason


async def test_crashes_and_time_limits_are_tried_again_and_earn_nothing(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    crash = b"import os\nos.kill(os.getpid(), 11)\n"
    verdict = await run(task, Patch({"pkg/core.py": crash}), retries=2)
    assert (verdict.status, verdict.runs, verdict.reward) == (Status.BROKEN, 3, 0.0)
    verdict = await run(task, Patch({"pkg/core.py": b"while True: pass\n"}), retries=1, timeout_sec=4)
    assert (verdict.status, verdict.runs, verdict.reward) == (Status.BROKEN, 2, 0.0)
    assert "time limit" in verdict.reason


async def test_a_patch_that_cannot_be_applied_is_broken(tmp_path: Path) -> None:
    verdict = await run(make_task(tmp_path), Patch({"pkg": b"x"}))
    assert (verdict.status, verdict.reward) == (Status.BROKEN, 0.0)
    assert "applied" in verdict.reason


async def test_no_sandbox_is_an_infra_error(tmp_path: Path) -> None:
    config = SandboxConfig(root=tmp_path / "missing")
    verdict = await grade(make_task(tmp_path / "task"), GOLD, config, VerifierConfig())
    assert (verdict.status, verdict.reward, verdict.runs) == (Status.INFRA_ERROR, 0.0, 2)
    assert "root" in verdict.reason


async def test_a_kind_without_a_grader_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REPORT_KINDS, "guess", ReportKind())
    task = make_task(tmp_path, **{"task.toml": BASE["task.toml"] + 'report = "guess"\n'})
    with pytest.raises(GradingError, match=r"metadata.report 'guess' has no grader; choose one of: junit"):
        await run(task, GOLD)


async def test_katas_noop_fails_and_solution_passes(kata_pool: PoolPaths) -> None:
    for row in read_index(kata_pool.train)[:8]:
        task = Task.load(row.task_path)
        assert task.solution is not None
        solved = {f.relative_to(task.solution).as_posix(): f.read_bytes() for f in task.solution.rglob("*.py")}
        assert (await run(task, Patch())).status is Status.FAILED
        verdict = await run(task, Patch(solved))
        assert verdict.status is Status.PASSED, verdict


def test_stored_verdicts_are_read_back_unchanged() -> None:
    verdict = Verdict(1.0, Status.PASSED, "fine", {"a": "passed"}, 0.5, "log", 2)
    assert Verdict.from_json(verdict.to_json()) == verdict
    for text in ("", "{}", verdict.to_json().replace('"passed"', '"won"')):
        with pytest.raises(VerdictError):
            Verdict.from_json(text)


def test_verdicts_from_before_there_were_kinds_are_read() -> None:
    stored = '{"reward": 0.0, "status": "failed", "reason": "x", "tests": {"a": "failed"}, "seconds": 1, "log": ""}'
    verdict = Verdict.from_json(stored)
    assert (verdict.grader, verdict.protected, verdict.runs) == ("unittest", True, 1)


def test_only_passing_earns_a_reward() -> None:
    with pytest.raises(VerdictError):
        Verdict(1.0, Status.TAMPERED, "x")
    with pytest.raises(VerdictError):
        Verdict(0.0, Status.PASSED, "x")


ONE_BIT = """\
import unittest
from pkg.core import total


class TestTotal(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(total([1, 2]) == 3, True)
"""


async def test_a_pass_that_a_guess_may_have_brought_must_be_repeated(tmp_path: Path) -> None:
    files = BASE | {"tests/sub/test_core.py": ONE_BIT, "task.toml": BASE["task.toml"].partition(', "sub')[0] + "]\n"}
    task = make_task(tmp_path, **files)
    patch = Patch({"pkg/core.py": b"def total(xs):\n    return sum(xs)\n"})
    verdicts = [
        await grade(task, patch, SandboxConfig(), VerifierConfig(guess_odds=odds)) for odds in (0.5, 0.25, 0.01)
    ]
    assert [(verdict.reward, verdict.runs) for verdict in verdicts] == [(1.0, 1), (1.0, 2), (1.0, 3)]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ([(Status.PASSED, 0.2), (Status.FAILED, 0.2)], (0.0, Status.FAILED, 2)),
        ([(Status.PASSED, 0.2), (Status.TAMPERED, 0.2)], (0.0, Status.TAMPERED, 2)),
        ([(Status.PASSED, 0.2), (Status.PASSED, 0.2), (Status.FAILED, 0.2)], (0.0, Status.FAILED, 3)),
        ([(Status.PASSED, 0.002)], (1.0, Status.PASSED, 1)),
        ([(Status.PASSED, 1.0)], (1.0, Status.PASSED, 1)),  # without copies there is no guess to repeat
        ([(Status.PASSED, 0.0)], (1.0, Status.PASSED, 1)),
    ],
)
async def test_luck_runs_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: list[tuple[Status, float]],
    expected: tuple[float, Status, int],
) -> None:
    left = list(run)

    class Lucky(Grader):
        def prepare(self) -> None:
            pass

        async def run(self, sandbox: Sandbox, limit: float) -> tuple[Judgement, ExecResult]:
            status, odds = left.pop(0)
            return Judgement(status, "why", odds=odds), ExecResult(0, b"", b"")

    monkeypatch.setitem(GRADERS, "unittest", Lucky)
    verdict = await grade(make_task(tmp_path), Patch(), SandboxConfig(), VerifierConfig())
    assert (verdict.reward, verdict.status, verdict.runs) == expected
    assert ("not again" in verdict.reason) == (verdict.status is Status.FAILED)
    assert not left
