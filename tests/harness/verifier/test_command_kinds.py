"""Kinds `junit`, `log` and `script`, run for real: honest, failing and forged, and marked as less protected."""

import shutil
from pathlib import Path

import pytest

from harness.patch import Patch
from harness.pool.task import Task
from harness.sandbox import SandboxConfig
from harness.verifier import GradingError, Status, Verdict, VerifierConfig, grade

BROKEN = "def add(a, b):\n    return a - b\n"
HONEST = "def add(a, b):\n    return a + b\n"
QUICK = VerifierConfig(timeout_sec=10.0, retries=0, memory_bytes=256 << 20, cpu_seconds=5)
CHECKS = """\
import sys
from xml.sax.saxutils import quoteattr

from calc import add

CASES = {"small [1]": add(1, 2) == 3, "né - gative": add(-1, -2) == -3, "none": add(0, 0) == 0, "other": False}
with open(sys.argv[1], "w") as out:
    out.write("<testsuites><testsuite>")
    for name, good in CASES.items():
        inner = "" if good else "<failure message='x'/>"
        out.write(f"<testcase classname='calc.Add' name={quoteattr(name)}>{inner}</testcase>")
    out.write("</testsuite></testsuites>")
sys.exit(0 if all(CASES.values()) else 1)
"""
JUNIT = """\
report = "junit"
test_command = ["python", "checks/run.py", "{report}"]
fail_to_pass = ["calc.Add::small [1]", "calc.Add::né - gative"]
pass_to_pass = ["calc.Add::none"]
"""
UNITTEST = """\
import unittest

from calc import add


class TestAdd(unittest.TestCase):
    def test_small(self):
        self.assertEqual(add(1, 2), 3)

    def test_none(self):
        self.assertEqual(add(0, 0), 0)
"""
LOG = """\
report = "log"
log_parser = "unittest"
test_command = ["python", "-m", "unittest", "-v", "test_calc"]
fail_to_pass = ["test_calc.TestAdd.test_small"]
pass_to_pass = ["test_calc.TestAdd.test_none"]
"""
SCRIPT = """\
#!/bin/bash
cd /app || exit 1
mkdir -p /logs/verifier
if python3 /tests/check.py; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""


def make_task(root: Path, metadata: str, files: dict[str, str]) -> Task:
    written = {
        "instruction.md": "Repair add.",
        "environment/repo/calc.py": BROKEN,
        "solution/files/calc.py": HONEST,
        "task.toml": f'[task]\nname = "test/calc"\n[environment]\nworkdir = "/app"\n[metadata]\n{metadata}',
        **files,
    }
    for path, text in written.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Task.load(root)


@pytest.fixture(params=["junit", "log", "script"])
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Task:
    metadata, files = {
        "junit": (JUNIT, {"tests/checks/run.py": "import sys\nsys.path.insert(0, '.')\n" + CHECKS}),
        "log": (LOG, {"tests/test_calc.py": UNITTEST}),
        "script": (
            "",
            {
                "tests/test.sh": SCRIPT,
                "tests/check.py": "import sys\nsys.path.insert(0, '/app')\n"
                "from calc import add\nassert add(1, 2) == 3\n",
            },
        ),
    }[request.param]
    return make_task(tmp_path / "calc", metadata, files)


async def judge(task: Task, source: str | None, verifier: VerifierConfig = QUICK) -> Verdict:
    patch = Patch({} if source is None else {"calc.py": source.encode()})
    return await grade(task, patch, SandboxConfig(), verifier)


async def test_honest_passes_noop_fails_and_both_say_how_far_they_are_protected(task: Task) -> None:
    verdict = await judge(task, HONEST)
    assert (verdict.reward, verdict.status) == (1.0, Status.PASSED), verdict
    assert (verdict.grader, verdict.protected) == (task.grading.report, False)
    noop = await judge(task, None)
    assert (noop.reward, noop.status, noop.protected) == (0.0, Status.FAILED, False), noop


@pytest.mark.parametrize(
    "source",
    ["import os\nos._exit(0)\n", "raise SystemExit(0)\n", "import os\nos.kill(os.getpid(), 9)\n", "def add(\n"],
)
async def test_ending_the_tests_early_earns_nothing(task: Task, source: str) -> None:
    verdict = await judge(task, source)
    assert verdict.reward == 0.0 or task.grading.report == "script", verdict
    assert verdict.status in (Status.BROKEN, Status.FAILED) or task.grading.report == "script", verdict


async def test_hanging_is_broken(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.verifier.graders.base.GRACE", 2.0)
    verdict = await judge(task, "while True: pass\n", QUICK.model_copy(update={"timeout_sec": 3.0}))
    assert (verdict.reward, verdict.status) == (0.0, Status.BROKEN), verdict


def without_solution(task: Task) -> Task:
    """The same task when it ships no solution, so that a broken run is compared with the snapshot's."""
    shutil.rmtree(task.path / "solution")
    return task


async def test_a_report_that_is_a_link_is_none(tmp_path: Path) -> None:
    files = {"tests/checks/run.py": "import sys\nsys.path.insert(0, '.')\nimport calc\n"}
    task = without_solution(make_task(tmp_path, JUNIT, {**files, "environment/repo/report.xml": "<testsuite/>"}))
    verdict = await judge(task, "import os, sys\nos.symlink('/workspace/report.xml', sys.argv[1])\n")
    assert (verdict.reward, verdict.status) == (0.0, Status.BROKEN)
    assert "no usable report" in verdict.reason


async def test_a_test_reported_both_ways_is_tampered(tmp_path: Path) -> None:
    task = make_task(tmp_path, LOG, {"tests/test_calc.py": UNITTEST})
    source = "import sys\nprint('test_small (test_calc.TestAdd) ... ok', file=sys.stderr)\n" + BROKEN
    verdict = await judge(task, source)
    assert (verdict.reward, verdict.status) == (0.0, Status.TAMPERED), verdict


async def test_success_without_all_tests_and_failure_without_a_failed_test_earn_nothing(tmp_path: Path) -> None:
    row = "<testcase classname='calc.Add' name='{}'/>"
    names = ("small [1]", "né - gative", "none")
    for rows, code, status in (
        (names[:2], 0, Status.FAILED),
        (names, 3, Status.BROKEN),
        (names, 0, Status.PASSED),
    ):
        text = f"<testsuite>{''.join(row.format(name) for name in rows)}</testsuite>"
        program = f"import sys\nopen(sys.argv[1], 'w').write({text!r})\nsys.exit({code})\n"
        task = make_task(tmp_path / f"{len(rows)}-{code}", JUNIT, {"tests/checks/run.py": program})
        assert (await judge(without_solution(task), HONEST)).status is status


@pytest.mark.parametrize(
    ("commands", "status"),
    [
        ("echo 0.9 > reward.txt", Status.FAILED),
        ("echo 0 > reward.txt; echo '{\"reward\": 1.0}' > reward.json", Status.PASSED),
        ('echo \'{"a": 1, "b": 0}\' > reward.json', Status.FAILED),
        ("echo NaN > reward.txt", Status.BROKEN),
        ("echo one > reward.txt", Status.BROKEN),
        ("echo '{}' > reward.json", Status.BROKEN),
        ("true", Status.BROKEN),
        ("mkdir reward.txt", Status.BROKEN),
    ],
)
async def test_rewards_that_scripts_write(tmp_path: Path, commands: str, status: Status) -> None:
    script = f"#!/bin/sh\nmkdir -p /logs/verifier; cd /logs/verifier\n{commands}\n"
    task = make_task(tmp_path, "", {"tests/test.sh": script})
    assert (await judge(without_solution(task), HONEST)).status is status


async def test_an_unknown_log_parser_is_refused(tmp_path: Path) -> None:
    task = make_task(tmp_path, LOG.replace('"unittest"', '"tap"', 1), {"tests/test_calc.py": UNITTEST})
    with pytest.raises(
        GradingError, match=r"log_parser 'tap' is unknown; choose one of: django, pytest, sympy, unittest"
    ):
        await judge(task, HONEST)
