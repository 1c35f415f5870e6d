"""The host's verdict on a patch: hidden tests in a fresh sandbox, a trusted runner, sentinels against forgery."""

from harness.verifier.config import VerifierConfig
from harness.verifier.grade import GradingError, grade, protected_paths
from harness.verifier.verdict import Status, Verdict, VerdictError

__all__ = ["GradingError", "Status", "Verdict", "VerdictError", "VerifierConfig", "grade", "protected_paths"]
