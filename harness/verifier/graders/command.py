"""Running a task's own test command over the repository with the hidden tests laid over it."""

from collections.abc import Sequence

from harness.pool.task import Task
from harness.sandbox import ExecResult, Sandbox
from harness.verifier.graders import base
from harness.verifier.hidden import hidden_files, read_hidden

_ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def read_overlay(task: Task) -> dict[str, bytes]:
    """The hidden files by their paths in the repository."""
    return read_hidden(task.tests, hidden_files(task.tests))


async def run_command(
    sandbox: Sandbox, overlay: dict[str, bytes], argv: Sequence[str], limit: float, env: dict[str, str]
) -> ExecResult:
    """Lay the hidden files over the workspace and run `argv` there; `python` is the project's.

    Raises:
        WorkspaceError: a folder stands where a hidden file goes.
    """
    await sandbox.write_files(overlay)
    program = sandbox.project_python if argv[0] in ("python", "python3") else argv[0]
    return await sandbox.exec([program, *argv[1:]], timeout=limit + base.GRACE, env={**_ENVIRONMENT, **env})
