"""Kind `pytest`: tests by pytest's own ids, laid over the repository, run by the trusted runner beside sentinels.

Of the repository no conftest.py and no settings are used, only those among the hidden files. The text of every hidden
Python file reaches the runner by its input; in the repository an empty file takes its place.
"""

import random
from pathlib import Path

from harness.pool.kinds import split_pytest_id
from harness.sandbox import ExecResult, Sandbox
from harness.verifier.graders.base import Grader, GradingError, register_grader
from harness.verifier.graders.runner import run_trusted
from harness.verifier.hidden import hidden_files, read_hidden
from harness.verifier.pytest_runtime import RuntimeMissing, runtime_archive
from harness.verifier.pytest_sentinels import add_pytest_sentinels
from harness.verifier.report import Judgement

_SETTINGS = ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


@register_grader("pytest")
class PytestGrader(Grader):
    protected = True

    def prepare(self) -> None:
        tests = self.task.tests
        grading = self.task.grading
        self.expected = [escape_id(test_id) for test_id in grading.expected]
        self.tests = add_pytest_sentinels(read_hidden(tests, hidden_files(tests)), self.expected, random.SystemRandom())
        self.conftests = _conftests(self.task.snapshot)
        try:
            self.runtime = runtime_archive()
        except RuntimeMissing as error:
            raise GradingError(f"{self.task.task_id}: metadata.report 'pytest' cannot be graded: {error}") from error

    async def run(self, sandbox: Sandbox, limit: float) -> tuple[Judgement, ExecResult]:
        files, home = self.tests.files, sandbox.config.home
        sources = {path: data.decode("utf-8") for path, data in files.items() if path.endswith(".py")}
        await sandbox.write_files(dict.fromkeys(path for path in self.conftests if path not in files))
        await sandbox.write_files({path: b"" if path in sources else data for path, data in files.items()})
        settings = next((f"{home}/{name}" for name in _SETTINGS if name in files), "/grader/empty.ini")
        job = {
            "tests": sorted({*self.expected, *self.tests.twins}),
            "files": sorted({f"{home}/{split_pytest_id(i)[0]}" for i in (*self.expected, *self.tests.twins)}),
            "sources": {f"{home}/{path}": text for path, text in sources.items()},
            "root": home,
            "settings": settings,
            "plugins": self.task.grading.pytest_plugins,
            "runtime": "/grader/pytest.zip",
            "packages": True,
        }
        extra = {"pytest.zip": self.runtime, "empty.ini": b"[pytest]\n"}
        return await run_trusted(sandbox, "pytest_child.py", job, limit, self.expected, self.tests, extra)


def escape_id(test_id: str) -> str:
    """The id as pytest reports it: it writes the parameters' characters beyond ASCII as escapes."""
    plain, bracket, parameters = test_id.partition("[")
    escaped = "".join(c if c.isascii() else c.encode("unicode_escape").decode("ascii") for c in parameters)
    return plain + bracket + escaped


def _conftests(snapshot: Path) -> list[str]:
    return [file.relative_to(snapshot).as_posix() for file in snapshot.rglob("conftest.py") if file.is_file()]
