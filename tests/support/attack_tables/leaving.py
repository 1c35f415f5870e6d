"""Leaving before the tests have judged."""

from support.attack_task import WRONG
from support.attacks import Attack, code

KIND = "early exit"


_SLOW = "\n\ndef add(a, b):\n    time.sleep(0.2)\n    return a - b\n\n\neven = add\n"


def _at_import(name: str, tries: str, text: str, slow: bool = False, **more: object) -> Attack:
    """`slow`: the text defines functions that give what it started the time to act."""
    files = {"calc.py": code(text, "" if slow else WRONG)}
    return Attack(name, KIND, tries, files=files, **more)  # type: ignore[arg-type]


def _in_call(name: str, tries: str, statement: str, **more: object) -> Attack:
    text = f"import os, signal, sys, threading, time, unittest\n\n\ndef add(a, b):\n    {statement}\n\n\neven = add\n"
    return Attack(name, KIND, tries, files={"calc.py": code(text, rest="")}, **more)  # type: ignore[arg-type]


ATTACKS = [
    _at_import("exit_at_import", "leaves with success when it is imported", "import os\nos._exit(0)"),
    _at_import("sys_exit_at_import", "raises SystemExit(0) when it is imported", "import sys\nsys.exit(0)"),
    _at_import(
        "exec_true", "turns the process into one that succeeds", "import os\nos.execv('/bin/true', ['/bin/true'])"
    ),
    _at_import(
        "exit_at_exit", "turns the exit code into success at the end", "import atexit, os\natexit.register(os._exit, 0)"
    ),
    _at_import(
        "exit_by_timer",
        "leaves with success while the tests run",
        f"import os, threading, time\nthreading.Timer(0.05, os._exit, (0,)).start()\n{_SLOW}",
        slow=True,
    ),
    _at_import(
        "exit_by_alarm",
        "leaves with success from a signal handler",
        f"import os, signal, time\nsignal.signal(14, lambda *a: os._exit(0))\nsignal.setitimer(0, 0.05)\n{_SLOW}",
        slow=True,
    ),
    _at_import("skip_at_import", "has the whole module skipped", "import unittest\nraise unittest.SkipTest('x')"),
    _at_import(
        "skip_at_import_pytest",
        "has the whole module skipped by pytest",
        "import pytest\npytest.skip('x', allow_module_level=True)",
        reports=("pytest",),
    ),
    _in_call("exit_in_call", "leaves with success in the middle of a test", "os._exit(0)"),
    _in_call("sys_exit_in_call", "raises SystemExit(0) in the middle of a test", "sys.exit(0)"),
    _in_call("skip_in_call", "has each test skipped", "raise unittest.SkipTest('x')"),
    _in_call("interrupt_in_call", "has the run stopped as if by a user", "raise KeyboardInterrupt"),
    _in_call(
        "pytest_exit_in_call",
        "has pytest leave with success",
        "import pytest; pytest.exit('done', returncode=0)",
        reports=("pytest",),
    ),
    _in_call("xfail_in_call", "has failures expected", "import pytest; pytest.xfail('expected')", reports=("pytest",)),
    _at_import(
        "expect_failures",
        "declares all tests expected failures",
        "import unittest\nunittest.TestCase.__unittest_expecting_failure__ = True",
        reports=("unittest",),
    ),
    _at_import(
        "skip_everything",
        "marks every test class as skipped",
        "import unittest\nunittest.TestCase.__unittest_skip__ = True\nunittest.TestCase.__unittest_skip_why__ = 'x'",
        reports=("unittest",),
    ),
]
