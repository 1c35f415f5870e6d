"""How patches are graded."""

from pydantic import BaseModel, ConfigDict, Field

CONFIRMATIONS = 2
"""Times that a pass is repeated at most."""


class VerifierConfig(BaseModel):
    """Limits of one grading. A task's own time limit counts where it is lower."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_sec: float = Field(default=20.0, gt=0, le=3600, description="seconds for the hidden tests, all together")
    memory_bytes: int = Field(default=1 << 30, ge=64 << 20, description="address space of each process of the tests")
    cpu_seconds: int = Field(default=30, ge=1, description="CPU time of each process of the tests")
    processes: int = Field(default=64, ge=4, description="processes and threads of the tests, together")
    retries: int = Field(
        default=1, ge=0, le=5, description="further runs when the tests crash or pass their time limit"
    )
    guess_odds: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description="a pass that code could owe to guessing which tests are sentinels, with more than this "
        "probability, must be repeated under other sentinels",
    )
    log_bytes: int = Field(
        default=8192, ge=256, description="bytes of the tests' output that a verdict keeps, from its end"
    )
