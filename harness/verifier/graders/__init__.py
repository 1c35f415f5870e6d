"""One grader a file, each registered under the name that a task's `metadata.report` gives."""

from harness.verifier.graders import (  # noqa: F401  (each registers itself)
    junit_kind,
    log_kind,
    pytest_kind,
    script_kind,
    unittest_kind,
)
from harness.verifier.graders.base import GRADERS, Grader, GradingError, register_grader

__all__ = ["GRADERS", "Grader", "GradingError", "register_grader"]
