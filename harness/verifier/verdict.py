"""The host's judgement of one patch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Self


class VerdictError(ValueError):
    """A stored verdict that cannot be read, or one that contradicts itself."""


class Status(StrEnum):
    """Only `passed` earns a reward. All but `infra_error` are the patch's doing.

    `failed`: the tests ran and at least one did not pass. `broken`: they did not run to their end (import error, crash,
    time or memory limit). `tampered`: the report shows that it was bent. `infra_error`: no sandbox could be made, or
    the grading fails on the task's own solution too.
    """

    PASSED = "passed"
    FAILED = "failed"
    BROKEN = "broken"
    TAMPERED = "tampered"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True)
class Verdict:
    """What a patch is worth, and why. `tests` maps the task's test ids to their status; `seconds` is wall time.

    `grader` is the grading kind. `protected` is False for the kinds that believe what the tests' own process writes.
    """

    reward: float
    status: Status
    reason: str
    tests: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    log: str = ""
    runs: int = 1
    grader: str = "unittest"
    protected: bool = True

    def __post_init__(self) -> None:
        if self.reward != (1.0 if self.status is Status.PASSED else 0.0):
            raise VerdictError(f"reward {self.reward} with status {self.status}; passed earns 1.0, all else 0.0")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The verdict that `to_json` wrote; one without `grader` was graded before there were other kinds.

        Raises:
            VerdictError: the text is no stored verdict.
        """
        try:
            stored = json.loads(text)
            return cls(**stored | {"status": Status(stored["status"])})
        except (KeyError, TypeError, ValueError) as error:
            raise VerdictError(f"no stored verdict ({error}); it must be what Verdict.to_json wrote") from error
