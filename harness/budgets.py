"""How long each stage of a trial may take, and how often a stage that the machine broke is tried."""

import math
import random

from pydantic import BaseModel, ConfigDict, Field

from harness.pool.task import Task
from harness.sandbox.base import SandboxConfig
from harness.scaffolds.base import ScaffoldConfig
from harness.verifier.config import CONFIRMATIONS, VerifierConfig

_MARGIN = 60.0
"""Seconds by which a sandbox outlives the sum of its budgets: the stage's own end must come first."""


class BudgetConfig(BaseModel):
    """Seconds of wall time by stage, each held from outside the sandbox. The agent's are the task's or the scaffold's.

    A stage other than the agent's that passes its budget has met a broken machine, and is tried again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    setup_sec: float = Field(
        default=300.0, gt=0, description="seconds until a sandbox holds the snapshot, the pull of an image included"
    )
    hang_sec: float = Field(
        default=120.0, gt=0, description="seconds beyond its own time limit after which a command counts as hung"
    )
    patch_sec: float = Field(default=120.0, gt=0, description="seconds to read back what the agent changed")
    stop_sec: float = Field(
        default=60.0, gt=0, description="seconds for a sandbox to stop; then that goes on in the background"
    )
    grading_sec: float = Field(
        default=300.0, gt=0, description="seconds of a grading beyond the time limits of its tests"
    )
    backoff_sec: float = Field(
        default=1.0, ge=0, description="pause before the second try, of which up to half is chance; it doubles"
    )
    max_backoff_sec: float = Field(default=60.0, ge=0, description="longest such pause")

    def agent_sec(self, task: Task, scaffold: ScaffoldConfig) -> float:
        """Seconds for the agent."""
        return scaffold.agent_timeout or task.agent_timeout

    def sandbox_life(self, task: Task, scaffold: ScaffoldConfig) -> float:
        """Seconds after which a sandbox may end itself, whoever started it: all its budgets are over by then."""
        agent = self.agent_sec(task, scaffold) + self.hang_sec
        return self.setup_sec + agent + self.patch_sec + self.stop_sec + _MARGIN

    def grading_limit(self, task: Task, verifier: VerifierConfig) -> float:
        """Seconds after which a grading counts as hung: each run of its tests, and those on the bare snapshot."""
        runs = verifier.retries + CONFIRMATIONS + 2
        return self.grading_sec + runs * min(verifier.timeout_sec, task.verifier_timeout)

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row.

        Part of it is chance: trials that failed together would otherwise come back together.
        """
        longest = min(self.backoff_sec * 2.0 ** min(failures - 1, 30), self.max_backoff_sec)
        return longest * random.SystemRandom().uniform(0.5, 1.0)


def outliving(config: SandboxConfig, seconds: float) -> SandboxConfig:
    """`config`, with sandboxes that do not end by themselves within so many seconds; only Kubernetes' ever would."""
    if config.kubernetes.life_seconds >= seconds:
        return config
    kubernetes = config.kubernetes.model_copy(update={"life_seconds": math.ceil(seconds)})
    return config.model_copy(update={"kubernetes": kubernetes})
