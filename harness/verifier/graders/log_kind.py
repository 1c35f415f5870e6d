"""Kind `log`: a command of the task's own whose output names each test and its result. Less protected."""

from harness.sandbox import ExecResult, Sandbox
from harness.verifier.command_report import ended_badly, judge_rows
from harness.verifier.graders.base import Grader, GradingError, register_grader
from harness.verifier.graders.command import read_overlay, run_command
from harness.verifier.log_parsers import LOG_PARSERS
from harness.verifier.report import Judgement
from harness.verifier.verdict import Status


@register_grader("log")
class LogGrader(Grader):
    """`metadata.log_parser` names the form. Output that was cut short is no report."""

    def prepare(self) -> None:
        name = self.task.grading.log_parser
        if name not in LOG_PARSERS:
            known = ", ".join(sorted(LOG_PARSERS))
            raise GradingError(f"{self.task.task_id}: metadata.log_parser {name!r} is unknown; choose one of: {known}")
        self.parse = LOG_PARSERS[name]
        self.overlay = read_overlay(self.task)

    async def run(self, sandbox: Sandbox, limit: float) -> tuple[Judgement, ExecResult]:
        grading = self.task.grading
        env = self.task.config.verifier.env
        result = await run_command(sandbox, self.overlay, grading.test_command or [], limit, env)
        judgement = ended_badly(result)
        if judgement is None and result.output_truncated:
            judgement = Judgement(Status.BROKEN, "the tests wrote more output than is kept")
        if judgement is None:
            log = "\n".join(stream.decode("utf-8", "replace") for stream in (result.stdout, result.stderr))
            judgement = judge_rows(self.parse(log, grading.expected), grading.expected, result.exit_code)
        return judgement, result
