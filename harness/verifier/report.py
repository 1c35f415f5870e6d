"""From what came out of the grading sandbox to a judgement. Nothing in it is believed without the nonce."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.sandbox import ExecResult
from harness.verifier.verdict import Status


class Report(BaseModel):
    """What `runner.py` writes. `statuses` may name a test twice, which no honest run does."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    exit: int
    timed_out: bool
    statuses: list[list[str]]
    details: dict[str, str]
    notes: list[str]
    end: bool
    forged: str


@dataclass(frozen=True)
class Judgement:
    """Status, why, and the status of each of the task's tests.

    `repeat`: another run could end otherwise. `odds`: how probably a pass is no more than a lucky guess which tests are
    sentinels; 0 where there is nothing to guess.
    """

    status: Status
    reason: str
    tests: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    repeat: bool = False
    odds: float = 0.0


def find_report(result: ExecResult, nonce: str) -> Report | None:
    """The report with this nonce in the command's output, if there is one and it is well-formed."""
    prefix = nonce.encode() + b" "
    lines = [line for line in result.stdout.split(b"\n") if line.startswith(prefix)]
    if len(lines) != 1:
        return None
    try:
        return Report.model_validate(json.loads(lines[0][len(prefix) :]))
    except (ValueError, RecursionError, ValidationError):
        return None


def judge(result: ExecResult, nonce: str, expected: Collection[str], sentinels: Mapping[str, str | None]) -> Judgement:
    """Judge one run of the tests `expected` with `sentinels`; see `SentinelTests.twins`."""
    report = find_report(result, nonce)
    if result.timed_out:
        return _broken("the tests passed their time limit and could not be stopped from inside", repeat=True)
    if report is None or result.exit_code != 0:
        return _broken(f"the test runner died with exit code {result.exit_code} and no report", repeat=True)
    statuses = {row[0]: row[1] for row in report.statuses if len(row) == 2}
    tests = {test_id: statuses[test_id] for test_id in sorted(expected) if test_id in statuses}
    details = {name: text for name, text in report.details.items() if name in tests}
    status, reason, repeat = _decide(report, statuses, expected, sentinels)
    return Judgement(status, reason, tests, details, repeat)


def _decide(
    report: Report, statuses: Mapping[str, Any], expected: Collection[str], sentinels: Mapping[str, str | None]
) -> tuple[Status, str, bool]:
    if report.forged:
        return Status.TAMPERED, f"forged report: {report.forged}", False
    if len(statuses) != len(report.statuses):
        return Status.TAMPERED, "forged report: a test is reported twice", False
    if not statuses.keys() <= {*expected, *sentinels}:
        return Status.TAMPERED, "forged report: it names tests that do not exist", False
    passed = {name for name, status in statuses.items() if status == "passed"}
    passing = [name for name, twin in sentinels.items() if name in passed and (twin is None or twin in passed)]
    if passing:
        return Status.TAMPERED, f"{len(passing)} of {len(sentinels)} tests that must fail are reported passed", False
    if report.timed_out:
        return Status.BROKEN, "the tests passed their time limit", True
    missing = [name for name in (*expected, *sentinels) if name not in statuses]
    if report.exit == 0 and (missing or not report.end):
        return Status.TAMPERED, f"the tests ended with success but {len(missing)} of them were not reported", False
    if not report.end:
        return Status.BROKEN, f"the tests crashed ({_ending(report.exit)})", True
    if report.exit != 0 or missing:
        return Status.BROKEN, _first_note(report, expected) or f"the tests ended with code {report.exit}", False
    not_passed = [name for name in sorted(expected) if statuses[name] != "passed"]
    if not_passed:
        first = not_passed[0]
        return Status.FAILED, f"{len(not_passed)} of {len(expected)} tests did not pass, e.g. {first}", False
    if any(statuses[name] != "failed" for name in sentinels):
        return Status.FAILED, "a test that must fail neither failed nor passed", False
    return Status.PASSED, f"all {len(expected)} tests passed", False


def _first_note(report: Report, expected: Collection[str]) -> str:
    """What the runner noted first, rather about one of the task's own tests than about a sentinel."""
    about = [note for note in report.notes if any(note.startswith(f"{name}: ") for name in expected)]
    return next(iter(about or report.notes), "")


def _broken(reason: str, repeat: bool) -> Judgement:
    return Judgement(Status.BROKEN, reason, repeat=repeat)


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
