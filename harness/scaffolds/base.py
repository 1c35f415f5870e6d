"""What every scaffold is: a registered class that works on one task through one sandbox and one session."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.sandbox.base import Sandbox
from trainer.rollout import Outcome


class ScaffoldError(ValueError):
    """A scaffold that is not registered, or registered twice."""


class ScaffoldConfig(BaseModel):
    """Which agent works on the tasks, and how far it may go."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default="edit", description="registered name of the scaffold")
    max_turns: int = Field(default=1, ge=1, description="answers of the policy before the trial ends as max_turns")
    max_tokens_per_turn: int | None = Field(
        default=None, ge=1, description="tokens of one answer that the scaffold asks for; none: the session's limit"
    )
    run_visible_tests: bool = Field(
        default=False, description="run the tests that the repository shows after each edit, and send failures back"
    )
    visible_tests_timeout: float = Field(default=60.0, gt=0, description="seconds for one run of the visible tests")
    agent_timeout: float | None = Field(
        default=None, gt=0, description="seconds for the agent, in place of the task's own limit"
    )

    @model_validator(mode="after")
    def _somebody_reads_the_tests(self) -> Self:
        if self.run_visible_tests and self.max_turns < 2:
            raise ValueError(
                "run_visible_tests is on but max_turns is 1, so no turn is left to read the result; "
                "set max_turns to 2 or more, or run_visible_tests to false"
            )
        return self


@dataclass
class Transcript:
    """What was said and done in a trial: `messages` of {role, content}, and `events` of {turn, event, ...}."""

    messages: list[dict[str, str]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def say(self, role: str, content: str) -> None:
        """Append a message."""
        self.messages.append({"role": role, "content": content})

    def note(self, event: str, **details: Any) -> None:
        """Append an event of the current turn; `details` must be JSON values."""
        self.events.append({"turn": self.turns, "event": event, **details})

    @property
    def turns(self) -> int:
        """Number of answers so far."""
        return sum(message["role"] == "assistant" for message in self.messages)

    def to_json(self) -> dict[str, Any]:
        """For trajectory.json."""
        return {"messages": self.messages, "events": self.events}


@dataclass(frozen=True)
class ScaffoldResult:
    """How the agent ended: never as agent_timeout or infra_error, which are the trial's to tell."""

    outcome: Outcome
    turns: int
    transcript: Transcript


class Scaffold(ABC):
    """An agent; one object serves one trial. `transcript` grows while it runs and outlives a cancelled run."""

    runs_inside: ClassVar[bool] = False
    """Whether the agent runs in the sandbox; `session.base_url` then is what leads from there to the proxy."""

    def __init__(self, config: ScaffoldConfig) -> None:
        self.config = config
        self.transcript = Transcript()

    @abstractmethod
    async def run(self, task: Task, sandbox: Sandbox, session: Session) -> ScaffoldResult:
        """Work on `task` in the workspace of `sandbox`, speaking to the policy only through `session.base_url`.

        Raises:
            SandboxError: the sandbox broke.
            ProxyUnreachable: the proxy did not answer as it should.
        """

    def result(self, outcome: Outcome) -> ScaffoldResult:
        """The result of a run that ends now."""
        return ScaffoldResult(outcome, self.transcript.turns, self.transcript)


SCAFFOLDS: dict[str, type[Scaffold]] = {}


def register_scaffold(name: str) -> Callable[[type[Scaffold]], type[Scaffold]]:
    """Class decorator: make a scaffold known under `name`.

    Raises:
        ScaffoldError: the name is taken.
    """

    def register(scaffold: type[Scaffold]) -> type[Scaffold]:
        if name in SCAFFOLDS:
            raise ScaffoldError(f"scaffold {name!r} is registered already, by {SCAFFOLDS[name].__module__}")
        SCAFFOLDS[name] = scaffold
        return scaffold

    return register


def create_scaffold(config: ScaffoldConfig) -> Scaffold:
    """A fresh scaffold for one trial.

    Raises:
        ScaffoldError: no scaffold has this name.
    """
    if config.name not in SCAFFOLDS:
        raise ScaffoldError(
            f"scaffold {config.name!r} is unknown; registered are {', '.join(sorted(SCAFFOLDS))}. "
            "A scaffold of your own is registered by a module named under plugins in the run config"
        )
    return SCAFFOLDS[config.name](config)
