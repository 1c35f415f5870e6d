"""Run hidden tests against candidates, one process for many. A script of its own, started by `prove`.

Standard input is one JSON object: `tests` (folder), `module` (its test module), `candidates` (folders that each hold a
`solution.py`) and `wanted`. The first candidate is the correct one. For each, one line of standard output: its number
and `tests`, test id to `passed`, `failed` or `timeout`. Work ends once `wanted` broken candidates other than mere
timeouts were seen.

Limits count the processor's time, not the clock's, so that a busy machine does not change a verdict.
"""

import importlib
import json
import resource
import signal
import sys
import unittest
from types import FrameType
from typing import TextIO

SECONDS_PER_TEST = 0.05
SECONDS_PER_CANDIDATE = 5
MEMORY_BYTES = 1 << 30


class TestTimeout(Exception):
    """The code under test used up its time."""


class Recorder(unittest.TestResult):
    """Keeps one word for each test, and stops a test that runs too long."""

    def __init__(self) -> None:
        super().__init__()
        self.words: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_TEST)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        super().stopTest(test)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.words[test.id()] = "passed"

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        self.words[test.id()] = "failed"

    def addError(self, test: unittest.TestCase, err: tuple[type[BaseException], BaseException, object]) -> None:  # type: ignore[override]
        self.words[test.id()] = "timeout" if issubclass(err[0], TestTimeout) else "failed"


def main(stdin: TextIO, stdout: TextIO) -> None:
    """Serve one request."""
    request = json.load(stdin)
    signal.signal(signal.SIGPROF, _on_timeout)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.dont_write_bytecode = True
    sys.path[:0] = ["", request["tests"]]
    wanted = request["wanted"]
    for number, folder in enumerate(request["candidates"]):
        _renew_budget()
        words = _run(folder, request["module"])
        print(json.dumps({"candidate": number, "tests": words}), file=stdout, flush=True)
        wanted -= "failed" in words.values()
        if not wanted:
            return


def _run(folder: str, module: str) -> dict[str, str]:
    sys.path[0] = folder
    for name in ("solution", module):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    recorder = Recorder()
    unittest.defaultTestLoader.loadTestsFromName(module).run(recorder)
    return recorder.words


def _renew_budget() -> None:
    """A hang inside one long call of the interpreter sees no signal handler: there the system ends the process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime) + SECONDS_PER_CANDIDATE
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _on_timeout(signum: int, frame: FrameType | None) -> None:
    raise TestTimeout


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
