"""Kind `unittest`: tests by the ids module.Class.test_name, run by the trusted runner beside sentinels."""

import random

from harness.sandbox import ExecResult, Sandbox
from harness.verifier.graders.base import Grader, register_grader
from harness.verifier.graders.runner import run_trusted
from harness.verifier.hidden import hidden_files, read_hidden
from harness.verifier.report import Judgement
from harness.verifier.sentinels import SentinelTests, add_sentinels, order_of_running


@register_grader("unittest")
class UnittestGrader(Grader):
    """The hidden tests lie at /tests, read-only, with their text kept out of every file."""

    protected = True

    def prepare(self) -> None:
        tests = self.task.tests
        self.expected = self.task.grading.expected
        self.tests = add_sentinels(read_hidden(tests, hidden_files(tests)), self.expected, random.SystemRandom())

    async def run(self, sandbox: Sandbox, limit: float) -> tuple[Judgement, ExecResult]:
        sources = _sources(self.expected, self.tests)
        await sandbox.mount_read_only("/tests", {**self.tests.files, **dict.fromkeys(map(_path, sources), b"")})
        ids = order_of_running(self.expected, self.tests.twins, random.SystemRandom())
        job = {
            "tests": [[test_id, *test_id.rsplit(".", 2)] for test_id in ids],
            "sources": sources,
            "path": [sandbox.config.home, "/tests"],
            "packages": sandbox.config.project_python is not None,
            "tests_dir": "/tests",
        }
        return await run_trusted(sandbox, "unittest_child.py", job, limit, self.expected, self.tests)


def _sources(expected: list[str], tests: SentinelTests) -> dict[str, str]:
    """Text of each module that has tests. It reaches the runner by its input; on disk an empty file takes its place."""
    modules = {test_id.rsplit(".", 2)[0] for test_id in (*expected, *tests.twins)}
    return {module: tests.files[_path(module)].decode("utf-8") for module in sorted(modules)}


def _path(module: str) -> str:
    return module.replace(".", "/") + ".py"
