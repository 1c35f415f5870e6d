"""Kind `junit`: a command of the task's own that writes a JUnit XML report, in whatever language. Less protected."""

import secrets

from harness.pool.kinds import REPORT_PLACE
from harness.sandbox import WORKSPACE, ExecResult, Sandbox, WorkspaceError
from harness.verifier.command_report import ended_badly, judge_rows
from harness.verifier.graders.base import Grader, register_grader
from harness.verifier.graders.command import read_overlay, run_command
from harness.verifier.junit import JUnitError, parse_junit
from harness.verifier.report import Judgement
from harness.verifier.verdict import Status

_MAX_BYTES = 16 << 20


@register_grader("junit")
class JUnitGrader(Grader):
    """Ids are `classname::name`, or `name` where a test case has no class. The report's name is new each time."""

    def prepare(self) -> None:
        self.overlay = read_overlay(self.task)

    async def run(self, sandbox: Sandbox, limit: float) -> tuple[Judgement, ExecResult]:
        grading = self.task.grading
        report = f"report-{secrets.token_hex(16)}.xml"
        argv = [word.replace(REPORT_PLACE, f"{WORKSPACE}/{report}") for word in grading.test_command or []]
        result = await run_command(sandbox, self.overlay, argv, limit, self.task.config.verifier.env)
        judgement = ended_badly(result)
        if judgement is None:
            try:
                rows = parse_junit(await sandbox.read_file(report, _MAX_BYTES))
                judgement = judge_rows(rows, grading.expected, result.exit_code)
            except (WorkspaceError, JUnitError) as error:
                reason = f"the test command ended with code {result.exit_code} and no usable report: {error}"
                judgement = Judgement(Status.BROKEN, reason)
        return judgement, result
