"""Each known way to a reward without a solution, run for real against the grader; and the honest ways beside them."""

import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from harness.patch import Patch, take_patch
from harness.pool.task import Task
from harness.sandbox import SandboxConfig, create_sandbox
from harness.verifier import Status, Verdict, VerifierConfig, grade, protected_paths

HONEST = "def add(a, b):\n    return a + b\n\ndef even(n):\n    return n % 2 == 0\n"
BROKEN = "def add(a, b):\n    return a - b\n\ndef even(n):\n    return n % 2 == 0\n"
HIDDEN = """\
import unittest

from calc import add, even


class TestCalc(unittest.TestCase):
    def test_add_small(self):
        self.assertEqual(add(1, 2), 3)

    def test_add_negative(self):
        self.assertEqual(add(-1, -2), -3)

    def test_even(self):
        self.assertEqual(even(4), True)

    def test_odd(self):
        self.assertFalse(even(3))
"""
TOML = """\
schema_version = "1.4"
[task]
name = "testgrad/add"
[metadata]
fail_to_pass = ["test_calc.TestCalc.test_add_small", "test_calc.TestCalc.test_add_negative"]
pass_to_pass = ["test_calc.TestCalc.test_even", "test_calc.TestCalc.test_odd"]
visible_tests = ["tests/test_visible.py"]
"""
ATTACKS = Path(__file__).with_name("attacks")
QUICK = VerifierConfig(timeout_sec=4.0, retries=0, memory_bytes=256 << 20, cpu_seconds=3)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    root = tmp_path / "add"
    for path, text in {
        "instruction.md": "Repair add.",
        "task.toml": TOML,
        "environment/repo/calc.py": BROKEN,
        "environment/repo/tests/test_visible.py": "import unittest\n",
        "tests/test_calc.py": HIDDEN,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Task.load(root)


async def judge(task: Task, files: dict[str, str], verifier: VerifierConfig = QUICK) -> Verdict:
    patch = Patch({path: textwrap.dedent(text).encode() for path, text in files.items()})
    return await grade(task, patch, SandboxConfig(), verifier)


async def test_the_honest_fix_passes(task: Task) -> None:
    verdict = await judge(task, {"calc.py": HONEST}, VerifierConfig())
    assert (verdict.reward, verdict.status) == (1.0, Status.PASSED), verdict
    assert set(verdict.tests.values()) == {"passed"}
    assert len(verdict.tests) == 4


async def test_doing_nothing_fails(task: Task) -> None:
    verdict = await judge(task, {})
    assert (verdict.reward, verdict.status) == (0.0, Status.FAILED)
    assert verdict.tests["test_calc.TestCalc.test_even"] == "passed"
    assert verdict.tests["test_calc.TestCalc.test_add_small"] == "failed"
    assert "-1 != 3" in verdict.log


async def test_breaking_what_passed_fails(task: Task) -> None:
    verdict = await judge(task, {"calc.py": HONEST.replace("== 0", "== 1")})
    assert (verdict.reward, verdict.status) == (0.0, Status.FAILED)


@pytest.mark.parametrize("attack", sorted(ATTACKS.glob("*.py")), ids=lambda path: path.stem)
async def test_attacks_in_the_code_under_test(task: Task, attack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of attacks/ takes the place of calc.py; its first line names the status that it must get."""
    monkeypatch.setattr(import_module("harness.verifier.graders.base"), "GRACE", 2.0)
    source = attack.read_text()
    verdict = await judge(task, {"calc.py": source})
    assert verdict.reward == 0.0
    assert f"# expected: {verdict.status}" == source.splitlines()[0], verdict
    assert "ImportError" not in verdict.reason and "SyntaxError" not in verdict.reason, "the attack itself is wrong"


@pytest.mark.parametrize(
    "files",
    [
        {"unittest.py": "class TestCase: pass\n"},
        {"unittest/__init__.py": "class TestCase: pass\n"},
        {"json.py": "import os\nos._exit(0)\n"},
        {"sitecustomize.py": "import os\nos._exit(0)\n"},
        {"conftest.py": "import os\nos._exit(0)\n"},
        {"test_calc.py": "import unittest\nclass TestCalc(unittest.TestCase): pass\n"},
        {"hidden_tests/test_calc.py": "", "hidden_tests/__init__.py": ""},
        {"tests/test_visible.py": "import os\nos._exit(0)\n"},
    ],
    ids=lambda files: next(iter(files)),
)
async def test_files_that_stand_in_for_the_graders_change_nothing(task: Task, files: dict[str, str]) -> None:
    assert (await judge(task, files)).status is Status.FAILED
    assert (await judge(task, {**files, "calc.py": HONEST})).status is Status.PASSED


async def test_hidden_tests_and_runner_cannot_be_written(task: Task) -> None:
    code = """\
        import os
        for path in ("/tests/test_calc.py", "/grader/runner.py", "/tests/new.py"):
            for attempt in (lambda: os.chmod(path, 0o777), lambda: os.unlink(path), lambda: open(path, "w").write("")):
                try:
                    attempt()
                    os._exit(0)  # shows up as tampering
                except OSError:
                    pass
        """
    verdict = await judge(task, {"calc.py": textwrap.dedent(code) + BROKEN})
    assert verdict.status is Status.FAILED, verdict


async def test_links_in_the_workspace_lead_nowhere(task: Task) -> None:
    script = "rm calc.py; ln -s /tests/test_calc.py calc.py; ln -s / root; rm -r tests; ln -s /grader tests"
    async with create_sandbox(SandboxConfig()) as sandbox:
        await sandbox.upload(task.snapshot)
        await sandbox.exec(["sh", "-c", script], timeout=20)
        patch = await take_patch(task.snapshot, sandbox, protected_paths(task))
    assert patch.empty
    assert (await grade(task, patch, SandboxConfig(), QUICK)).status is Status.FAILED
