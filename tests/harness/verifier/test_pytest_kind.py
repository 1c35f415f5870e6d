"""Kind `pytest`: what passes, what is no pass, what is not read, and what is caught."""

import textwrap
from pathlib import Path

import pytest

from harness.patch import Patch
from harness.pool.task import Task
from harness.sandbox import SandboxConfig
from harness.verifier import Status, Verdict, VerifierConfig, grade

BROKEN = "def add(a, b):\n    return a - b\n\ndef even(n):\n    return n % 2 == 0\n"
HONEST = BROKEN.replace("a - b", "a + b")
HIDDEN = """\
import pytest

from calc import add, even


@pytest.mark.parametrize("word", ["a b", "é", "x[1]::y", "a - b"])
def test_words(word):
    assert add(word, "!") == word + "!"


def test_add(five):
    assert add(2, 3) == five


class TestMore:
    def test_near(self, tmp_path):
        assert add(0.1, 0.2) == pytest.approx(0.3)

    def test_even(self):
        assert even(4)
        with pytest.raises(TypeError):
            even("x")
"""
F2P = ["test_add", "TestMore::test_near", *(f"test_words[{w}]" for w in ("a b", "é", "x[1]::y", "a - b"))]
P2P = ["TestMore::test_even"]
FILES = {
    "instruction.md": "Repair add.",
    "environment/repo/calc.py": BROKEN,
    "environment/repo/tests/conftest.py": "raise RuntimeError('the conftest of the repository was read')\n",
    "environment/repo/conftest.py": "raise RuntimeError('the conftest of the repository was read')\n",
    "environment/repo/pytest.ini": "[pytest]\naddopts = --no-such-option\n",
    "tests/tests/test_calc.py": HIDDEN,
    "tests/tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef five():\n    return 5\n",
    "solution/files/calc.py": HONEST,
}
QUICK = VerifierConfig(timeout_sec=15.0, retries=0, memory_bytes=512 << 20, cpu_seconds=4)


def make_task(root: Path, fail_to_pass: list[str] = F2P, pass_to_pass: list[str] = P2P, **changes: str) -> Task:
    ids = {"fail_to_pass": fail_to_pass, "pass_to_pass": pass_to_pass}
    lists = "".join(f"{key} = {[f'tests/test_calc.py::{name}' for name in names]!r}\n" for key, names in ids.items())
    toml = f'[task]\nname = "test/calc"\n[metadata]\nreport = "pytest"\n{lists}'
    for path, text in {**FILES, "task.toml": toml, **changes}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Task.load(root)


async def judge(task: Task, files: dict[str, str], verifier: VerifierConfig = QUICK) -> Verdict:
    patch = Patch({path: textwrap.dedent(text).encode() for path, text in files.items()})
    return await grade(task, patch, SandboxConfig(), verifier)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return make_task(tmp_path / "calc")


async def test_the_honest_fix_passes_and_doing_nothing_fails(task: Task) -> None:
    verdict = await judge(task, {"calc.py": HONEST})
    assert (verdict.reward, verdict.status) == (1.0, Status.PASSED), verdict
    assert (verdict.grader, verdict.protected) == ("pytest", True)
    assert set(verdict.tests.values()) == {"passed"}
    assert len(verdict.tests) == len(F2P) + len(P2P)
    noop = await judge(task, {})
    assert (noop.reward, noop.status) == (0.0, Status.FAILED), noop
    assert noop.tests["tests/test_calc.py::TestMore::test_even"] == "passed"
    assert noop.tests["tests/test_calc.py::test_add"] == "failed"


async def test_breaking_what_passed_fails(task: Task) -> None:
    verdict = await judge(task, {"calc.py": HONEST.replace("== 0", "== 1")})
    assert verdict.status is Status.FAILED


@pytest.mark.parametrize(
    ("mark", "status"),
    [
        ("skip(reason='x')", "skipped"),
        ("xfail(reason='x')", "xpassed"),
        ("xfail(reason='x', strict=True)", "failed"),
        ("xfail(raises=KeyError, reason='x')", "xpassed"),
    ],
)
async def test_only_a_plain_pass_is_one(tmp_path: Path, mark: str, status: str) -> None:
    hidden = HIDDEN.replace("def test_add(", f"@pytest.mark.{mark}\ndef test_add(")
    task = make_task(tmp_path, **{"tests/tests/test_calc.py": hidden})
    verdict = await judge(task, {"calc.py": HONEST})
    assert verdict.status is Status.FAILED, verdict
    assert verdict.tests["tests/test_calc.py::test_add"] == status


async def test_a_failing_tear_down_is_no_pass(tmp_path: Path) -> None:
    conftest = FILES["tests/tests/conftest.py"].replace("return 5", "yield 5\n    assert 0")
    verdict = await judge(make_task(tmp_path, **{"tests/tests/conftest.py": conftest}), {"calc.py": HONEST})
    assert verdict.status is Status.FAILED
    assert verdict.tests["tests/test_calc.py::test_add"] == "error"


async def test_a_test_that_does_not_exist_is_never_passed(tmp_path: Path) -> None:
    task = make_task(tmp_path, [*F2P, "test_words[nothing]"])
    verdict = await judge(task, {"calc.py": HONEST})
    assert (verdict.reward, verdict.status) == (0.0, Status.INFRA_ERROR), "the solution does not pass it either"
    assert "test_words[nothing]" in verdict.reason


async def test_settings_and_classes_of_unittest_are_the_hidden_ones(tmp_path: Path) -> None:
    hidden = """\
        import unittest
        from calc import add

        class TestOld(unittest.TestCase):
            def check_add(self):
                self.assertEqual(add(1, 2), 3)
    """
    changes = {
        "tests/tests/test_calc.py": textwrap.dedent(hidden),
        "tests/pytest.ini": "[pytest]\npython_functions = check_*\n",
    }
    changes["tests/tests/test_calc.py"] += "\ndef check_more():\n    assert add(2, 2) == 4\n"
    task = make_task(tmp_path, ["check_more"], [], **changes)
    assert (await judge(task, {"calc.py": HONEST})).status is Status.PASSED
    assert (await judge(task, {})).status is Status.FAILED


ATTACKS = {
    "exit_at_import": ("import os\nos._exit(0)\n", Status.TAMPERED),
    "exit_in_call": ("import os\ndef add(a, b): os._exit(0)\ndef even(n): os._exit(0)\n", Status.TAMPERED),
    "system_exit": ("raise SystemExit(0)\n", Status.BROKEN),
    "pytest_exit": ("import pytest\ndef add(a, b): pytest.exit('x', 0)\neven = add\n", Status.TAMPERED),
    "skip_in_call": ("import pytest\ndef add(a, b): pytest.skip('x')\neven = add\n", Status.FAILED),
    "skip_at_import": ("import pytest\npytest.skip('x', allow_module_level=True)\n", Status.BROKEN),
    "equal_to_all": (
        "class E(str):\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n    __hash__ = None\n"
        "def add(a, b): return E()\ndef even(n):\n    if n == 'x': raise TypeError\n    return E('1')\n",
        Status.TAMPERED,
    ),
    "fake_protocol": (
        "import _pytest.runner as r\nfrom _pytest.reports import TestReport\n"
        "old = TestReport.from_item_and_call.__func__\n"
        "def new(cls, item, call):\n    report = old(cls, item, call)\n"
        "    report.outcome, report.longrepr = 'passed', None\n    return report\n"
        "TestReport.from_item_and_call = classmethod(new)\nadd = even = int\n",
        Status.TAMPERED,
    ),
    "pyfunc_call": (
        "import gc\nfrom _pytest.python import Function\nFunction.runtest = lambda self: None\nadd = even = int\n",
        Status.TAMPERED,
    ),
    "raises_that_accept_all": (
        "import pytest, contextlib\npytest.raises = lambda *a, **k: contextlib.suppress(BaseException)\n"
        "def add(a, b): return a + b\ndef even(n): return True\n",
        Status.TAMPERED,
    ),
    "forged_output": ("print('tests/test_calc.py::test_add PASSED')\nadd = even = int\n", Status.FAILED),
    "loop": ("while True: pass\n", Status.BROKEN),
    "crash": ("import os\nos.kill(os.getpid(), 11)\n", Status.BROKEN),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_attacks_in_the_code_under_test(task: Task, name: str) -> None:
    source, status = ATTACKS[name]
    verdict = await judge(task, {"calc.py": source})
    assert (verdict.reward, verdict.status) == (0.0, status), verdict
    assert "SyntaxError" not in verdict.reason, "the attack itself is wrong"


@pytest.mark.parametrize(
    "path",
    [
        *("conftest.py", "tests/conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "tests/test_calc.py", "pytest.py"),
        *("_pytest/__init__.py", "tests/unittest.py", "tests/test_calc/__init__.py", "x.egg-info/entry_points.txt"),
        *("tests/__init__.py", "pluggy.py", "src/json.py", "sitecustomize.py"),
    ],
)
async def test_files_that_stand_in_for_the_graders_change_nothing(task: Task, path: str) -> None:
    hostile = "import os\nos._exit(0)\n"
    assert (await judge(task, {path: hostile, "calc.py": HONEST})).status is Status.PASSED


async def test_hidden_tests_lie_in_no_file(task: Task) -> None:
    code = """\
        import glob
        texts = [open(f).read() for f in glob.glob("/workspace/**/*.py", recursive=True) + glob.glob("/tests/**")]
        if any("app" "rox" in text for text in texts):
            import os
            os._exit(0)  # shows up as tampering
    """
    verdict = await judge(task, {"calc.py": textwrap.dedent(code) + BROKEN})
    assert verdict.status is Status.FAILED, verdict


@pytest.mark.parametrize(("source", "status"), [(HONEST, Status.PASSED), (BROKEN, Status.FAILED)])
async def test_a_test_whose_subtests_fail_has_failed(tmp_path: Path, source: str, status: Status) -> None:
    hidden = """\
        import unittest

        from calc import add


        class TestAdd(unittest.TestCase):
            def test_add(self):
                for a, b, total in ((1, 0, 1), (2, 3, 5), (-1, -1, -2)):
                    with self.subTest(a=a, b=b):
                        self.assertEqual(add(a, b), total)
    """
    task = make_task(tmp_path, ["TestAdd::test_add"], [], **{"tests/tests/test_calc.py": textwrap.dedent(hidden)})
    verdict = await grade(task, Patch({"calc.py": source.encode()}), SandboxConfig(), QUICK)
    assert verdict.status is status, verdict
