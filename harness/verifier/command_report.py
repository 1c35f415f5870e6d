"""From what a test command of the task's own left behind to a judgement.

Unlike the trusted runner's report this one is written by the process that the code under test runs in. What can be
checked is checked (a test reported twice, an exit code that contradicts the report), but code that writes a whole
report of its own and ends the process is believed. Verdicts of these kinds are marked as less protected.
"""

from collections.abc import Collection, Sequence

from harness.sandbox import ExecResult
from harness.verifier.report import Judgement
from harness.verifier.verdict import Status

Rows = Sequence[tuple[str, str]]
"""(test id, status) as reported, in order. The status of a test that passed is `passed`."""

_SHELL_CODES = (124, 125, 126, 127)


def ended_badly(result: ExecResult) -> Judgement | None:
    """The judgement of a command that did not end by itself; None if it did."""
    if result.timed_out:
        return Judgement(Status.BROKEN, "the tests passed their time limit", repeat=True)
    if result.exit_code >= 128 or result.exit_code in _SHELL_CODES:
        return Judgement(Status.BROKEN, f"the test command died with exit code {result.exit_code}", repeat=True)
    return None


def judge_rows(rows: Rows, expected: Collection[str], exit_code: int) -> Judgement:
    """Judge the rows of a report. Tests beyond `expected` may fail, and only they may explain an exit code but 0."""
    statuses = dict(rows)
    tests = {test_id: statuses[test_id] for test_id in sorted(expected) if test_id in statuses}
    twice = sorted(name for name, status in rows if name in tests and statuses[name] != status)
    if twice:
        reason = f"forged report: {twice[0]} is reported with different results"
        return Judgement(Status.TAMPERED, reason, tests)
    if not rows:
        return Judgement(Status.BROKEN, f"the tests reported nothing and ended with code {exit_code}", tests)
    missing = sorted(set(expected) - tests.keys())
    failing = [name for name, status in tests.items() if status != "passed"]
    if missing or failing:
        example = (failing + missing)[0]
        reason = f"{len(failing)} of {len(expected)} tests did not pass and {len(missing)} were not reported"
        return Judgement(Status.FAILED, f"{reason}, e.g. {example}", tests)
    bad = ("failed", "error", "xpassed")
    if exit_code != 0 and not any(status in bad for status in statuses.values()):
        return Judgement(Status.BROKEN, f"the tests ended with code {exit_code} though none is reported failed", tests)
    return Judgement(Status.PASSED, f"all {len(expected)} tests passed", tests)
