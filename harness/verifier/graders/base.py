"""What a grader is: it runs hidden tests in a sandbox that holds the patched repository, and says how they ended."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

from harness.pool.kinds import REPORT_KINDS, ReportKind
from harness.pool.task import Task
from harness.sandbox import ExecResult, Sandbox
from harness.verifier.report import Judgement

GRACE = 5.0
"""Seconds beyond the tests' own deadline after which they are killed from outside."""


class GradingError(ValueError):
    """A task that cannot be graded as it asks to be; the message names the field and the mend."""


class Grader(ABC):
    """Grades one patch of one task.

    `protected` says whether tests that must fail stand among the real ones and results come from a process that the
    code under test cannot imitate. Where it is False, hostile code that writes what the tests would have written can
    earn a reward, and every report says so.
    """

    protected: ClassVar[bool] = False

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def prepare(self) -> None:
        """Read what the task hides. Called once before `run`, in another thread.

        Raises:
            GradingError: this machine or the task lacks something.
        """

    @abstractmethod
    async def run(self, sandbox: Sandbox, limit: float) -> tuple[Judgement, ExecResult]:
        """Run the hidden tests for at most `limit` seconds, with whatever `sandbox` its workspace holds.

        Raises:
            WorkspaceError: the hidden tests cannot be laid over the workspace.
        """


GRADERS: dict[str, type[Grader]] = {}
"""Graders by the name that a task's `metadata.report` gives."""

G = TypeVar("G", bound=type[Grader])


def register_grader(name: str) -> Callable[[G], G]:
    """Class decorator: make a grader known as `name`, so that tasks may ask for it."""

    def register(cls: G) -> G:
        if name in GRADERS:
            raise ValueError(f"grader {name!r} is registered twice; choose another name")
        GRADERS[name] = cls
        REPORT_KINDS.setdefault(name, ReportKind())
        return cls

    return register
