"""What can be known to be wrong with a run before it starts."""

from flows.preflight.findings import Finding, Level
from flows.preflight.run import PreflightError, preflight, run_checks

__all__ = ["Finding", "Level", "PreflightError", "preflight", "run_checks"]
