"""Trying a bug: the tests that run the changed lines, and what their ends say of it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.pool.builder.baseline import Baseline
from harness.pool.builder.choose import Choice
from harness.pool.builder.mutate import Rendered
from harness.pool.builder.runner import RunResult, SuiteRun, TestEnd
from harness.pool.kinds import split_pytest_id

KEPT = "kept"
REJECTIONS = {
    "no change": "it is no Python, or means the same as before",
    "repeated": "another bug gives the same text",
    "uncovered": "no reliable test runs the changed lines",
    "survived": "all tests pass all the same",
    "import": "the tests cannot even be collected",
    "hang": "the tests do not come to an end",
    "crash": "the tests' process dies",
    "wreck": "too large a part of the suite fails",
    "trace": "the clean text can be found elsewhere in the snapshot",
    "admission": "the grader does not score the bug 0 and the solution 1 each time",
    "surplus": "there were tasks enough",
}
"""Why a bug is no task."""


@dataclass(frozen=True)
class Probe:
    """What came of a bug: `kept` or one of `REJECTIONS`; the failing tests with their ends, if kept."""

    outcome: str
    failing: Mapping[str, TestEnd]

    def to_dict(self) -> dict[str, Any]:
        return {"outcome": self.outcome, "failing": {name: asdict(end) for name, end in self.failing.items()}}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Probe":
        failing = {name: TestEnd(**end) for name, end in stored["failing"].items()}
        return cls(stored["outcome"], failing)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A bug as text, with the tests that come by it. `digest` is of the package, the file and its text."""

    choice: Choice
    rendered: Rendered
    tests: tuple[str, ...]
    digest: str

    def run(self, baseline: Baseline) -> SuiteRun:
        """The run that tries it. A test that takes many times as long as it should is one that hangs."""
        files = tuple(dict.fromkeys(split_pytest_id(test)[0] for test in self.tests))
        seconds = 1.0 + 3 * baseline.startup + 5 * sum(baseline.tests[test] for test in self.tests)
        return SuiteRun(self.digest, files, self.tests, {self.choice.file: self.rendered.text}, seconds)


def candidate(choice: Choice, rendered: Rendered, baseline: Baseline, context: str) -> Candidate:
    """The candidate of a rendered bug; `context` tells its snapshot. It may have no tests."""
    tests = baseline.covering(choice.file, rendered.lines)
    if not tests and _outside_functions(choice):
        tests = baseline.touching(choice.file)
    digest = hashlib.sha256(f"{context}\0{choice.file}\0{rendered.text}".encode()).hexdigest()[:24]
    return Candidate(choice, rendered, tuple(tests), digest)


def judge(found: Candidate, result: RunResult, baseline: Baseline, most_failing: float) -> Probe:
    """What the run of a candidate's tests says of it."""
    if result.ending != "ended":
        return Probe(result.ending, {})
    missing = [test for test in found.tests if test not in result.tests]
    if missing:
        return Probe("import", {})
    failing = {test: result.tests[test] for test in found.tests if result.tests[test].status != "passed"}
    if not failing:
        return Probe("survived", {})
    if len(failing) > most_failing * len(baseline.tests) or len(failing) == len(baseline.tests):
        return Probe("wreck", {})
    return Probe(KEPT, failing)


def leaves_trace(found: Candidate, files: Mapping[str, str]) -> bool:
    """Whether a text of the snapshot other than the changed one holds a changed statement as it was."""
    statements = [s.strip() for s in found.rendered.statements if s.count("\n") > 2]
    others = (text for path, text in files.items() if path != found.choice.file)
    return any(statement in text for text in others for statement in statements)


def _outside_functions(choice: Choice) -> bool:
    """Kinds whose lines run on import, which belongs to no test."""
    return choice.kind in {"attribute_drop", "base_drop", "default_change", "decorator_drop", "member_drop"}


def diff_lines(rendered: Rendered) -> Sequence[str]:
    """Lines that nobody may be told."""
    return [line for line in (*rendered.removed, *rendered.added) if line.strip()]
