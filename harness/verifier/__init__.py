"""The host's verdict on a patch: hidden tests in a fresh sandbox, a trusted runner, sentinels against forgery."""

from harness.verifier.config import VerifierConfig
from harness.verifier.grade import grade
from harness.verifier.graders import GRADERS, Grader, GradingError, register_grader
from harness.verifier.hidden import protected_paths
from harness.verifier.verdict import Status, Verdict, VerdictError

__all__ = [
    "GRADERS",
    "Grader",
    "GradingError",
    "Status",
    "Verdict",
    "VerdictError",
    "VerifierConfig",
    "grade",
    "protected_paths",
    "register_grader",
]
