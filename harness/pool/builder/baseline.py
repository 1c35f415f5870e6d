"""What the clean package's suite does: which tests can be relied on, how long they take, which lines they run."""

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.pool.builder.runner import GRADERS_CHILD, WORKER, RunResult, SuiteRun, SuiteRunner
from harness.pool.builder.source import SourceError
from harness.pool.kinds import pytest_problems, split_pytest_id
from harness.pool.together import together
from harness.verifier.graders.pytest_kind import escape_id

_SUITE_SECONDS = 300.0


@dataclass(frozen=True)
class Baseline:
    """`tests` are the reliable ones with their seconds, in the suite's order; `quarantined` the others with reasons.

    `lines` maps a source file to masks by test: bit N is set if the test runs line N. `startup` are seconds of the
    processor until the first test; `modules` the files of the repository that the suite imports.
    """

    tests: Mapping[str, float]
    quarantined: Mapping[str, str]
    lines: Mapping[str, Mapping[str, int]]
    startup: float
    modules: tuple[str, ...]

    def covering(self, file: str, lines: int) -> list[str]:
        """The reliable tests that run any of the lines of the mask in `file`, in the suite's order."""
        masks = self.lines.get(file, {})
        return [test for test in self.tests if masks.get(test, 0) & lines]

    def touching(self, file: str) -> list[str]:
        """The reliable tests that run any code of `file`."""
        masks = self.lines.get(file, {})
        return [test for test in self.tests if masks.get(test, 0)]

    def to_bytes(self) -> bytes:
        """All of it, compressed."""
        lines = {file: {test: format(m, "x") for test, m in masks.items()} for file, masks in self.lines.items()}
        return gzip.compress(json.dumps({**vars(self), "lines": lines}).encode(), mtime=0)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Baseline":
        stored: dict[str, Any] = json.loads(gzip.decompress(data))
        lines = {file: {test: int(m, 16) for test, m in masks.items()} for file, masks in stored["lines"].items()}
        return cls(**{**stored, "lines": lines, "modules": tuple(stored["modules"])})


async def measure(runner: SuiteRunner, label: str, suite_runs: int, test_seconds: float, hidden: Path) -> Baseline:
    """Run the suite of the clean package, every second time backwards, and once more to see the lines.

    `hidden` is the folder of the hidden files, for what a task's reader asks of a test's id.

    Raises:
        SourceError: no test passes reliably.
        SandboxError: the suite cannot be run.
    """
    files = runner.layout.test_files
    runs = [SuiteRun(f"run{n}", files, seconds=_SUITE_SECONDS, reverse=n % 2 == 1) for n in range(suite_runs)]
    traced = SuiteRun("traced", files, seconds=10 * _SUITE_SECONDS, trace=True)
    parts = await together(runner.run([run]) for run in (*runs, traced))
    results = [part[0] for part in parts]
    plain, trace = results[:-1], results[-1]
    for result in results:
        if result.ending != "ended":
            raise SourceError(
                f"{label}: a run of its suite ended in a {result.ending}: {'; '.join(result.notes)[:300]}"
            )
    tests, quarantined = _sort_out(plain, test_seconds)
    quarantined |= pytest_problems(tests, hidden)
    tests = {test: seconds for test, seconds in tests.items() if test not in quarantined}
    if not tests:
        raise SourceError(f"{label}: no test passes reliably, of {len(quarantined)}: {_first(plain[0], quarantined)}")
    lines: dict[str, dict[str, int]] = {}
    for test in tests:
        for file, mask in trace.lines.get(test, {}).items():
            lines.setdefault(file, {})[test] = mask
    startup = sorted(result.startup for result in plain)[len(plain) // 2]
    return Baseline(tests, quarantined, lines, startup, plain[0].modules)


def _sort_out(runs: Sequence[RunResult], test_seconds: float) -> tuple[dict[str, float], dict[str, str]]:
    tests: dict[str, float] = {}
    quarantined: dict[str, str] = {}
    for test in dict.fromkeys(name for run in runs for name in run.tests):
        ends = [run.tests[test] for run in runs if test in run.tests]
        passed = [end for end in ends if end.status == "passed"]
        seconds = max(end.seconds for end in ends)
        if len(ends) < len(runs):
            quarantined[test] = f"flaky: there in {len(ends)} of {len(runs)} runs"
        elif not passed:
            quarantined[test] = f"{ends[0].status}: {ends[0].detail}"[:200]
        elif len(passed) < len(runs):
            failed = next(end for end in ends if end.status != "passed")
            quarantined[test] = f"flaky: passed in {len(passed)} of {len(runs)} runs, else {failed.detail}"[:200]
        elif seconds > test_seconds:
            quarantined[test] = f"slow: {seconds:.1f} s"
        elif not _usual(test):
            quarantined[test] = "its id is none that a task may name"
        else:
            tests[test] = seconds
    return tests, quarantined


def _usual(test: str) -> bool:
    try:
        split_pytest_id(test)
    except ValueError:
        return False
    return escape_id(test) == test and test.isprintable()


def _first(run: RunResult, quarantined: Mapping[str, str]) -> str:
    return next(iter([*run.notes, *quarantined.values()]), "none was found")[:300]


def programs_digest() -> str:
    """Digest of the programs that decide what a baseline says."""
    programs = (WORKER, GRADERS_CHILD, Path(__file__))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in programs)).hexdigest()[:16]
