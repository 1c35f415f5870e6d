"""What every scaffold is: a registered class that works on one task through one sandbox and one session."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.sandbox.base import Sandbox, SandboxConfig
from trainer.rollout import Outcome


class ScaffoldError(ValueError):
    """A scaffold that is not registered, or registered twice, or whose settings do not fit it."""


class MixedConfig(BaseModel):
    """Which agents share the tasks. Who works on a task depends on seed, step and task alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: dict[str, float] = Field(default={}, description="share of each scaffold by name, in any unit")
    seed: int = Field(default=0, description="another seed deals the tasks out anew")
    settings: dict[str, dict[str, Any]] = Field(
        default={}, description="settings of single scaffolds by name, in place of those beside `mixed`"
    )
    evaluation: str | None = Field(default=None, description="the scaffold that evaluations use; none: mixed as well")

    @model_validator(mode="after")
    def _weights_are_shares(self) -> Self:
        for name, weight in self.weights.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(f"mixed.weights.{name} is {weight}; a share is a finite number of 0 or more")
        if self.weights and not any(self.weights.values()):
            raise ValueError("mixed.weights are all 0; give at least one scaffold a share above 0")
        if unused := sorted(self.settings.keys() - self.weights.keys()):
            raise ValueError(f"mixed.settings names {', '.join(unused)}, without a weight; add it to mixed.weights")
        return self


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
    segments: Literal["longest", "main", "all"] = Field(
        default="longest",
        description="what is trained when an agent rewrites its history or asks besides: the segment with most "
        "sampled tokens, those of the main conversation, or all",
    )
    no_tool_limit: int = Field(
        default=0, ge=0, description="answers in a row without a tool call that end a trial; 0: no limit"
    )
    runtimes: Path | None = Field(
        default=None,
        description="folder of agents prepared by `testgrad scaffolds install`; none: TESTGRAD_RUNTIMES, or the cache",
    )
    args: tuple[str, ...] = Field(default=(), description="further words of the agent's command line")
    env: dict[str, str] = Field(default={}, description="further environment of the agent")
    command: tuple[str, ...] = Field(
        default=(),
        description="of the scaffold `command`: the program and its words, in which {instruction}, {base_url}, "
        "{anthropic_base_url}, {model} and {api_key} are filled in; without {instruction} it is given as input",
    )
    command_runtime: Path | None = Field(
        default=None, description="of the scaffold `command`: folder of this machine that it finds at /opt/agent"
    )
    mixed: MixedConfig = Field(default=MixedConfig(), description="of the scaffold `mixed`: who gets which tasks")

    @field_validator("runtimes", "command_runtime")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

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

    @classmethod
    def check(cls, config: ScaffoldConfig) -> None:
        """Refuse settings that do not fit this scaffold; called when a run's configuration is read.

        Raises:
            ScaffoldError: a setting is missing or wrong; the message names the mend.
        """
        return None

    @classmethod
    def require(cls, config: ScaffoldConfig) -> None:
        """Refuse to start a run on a machine that lacks what trials will need, as far as one can see from here.

        Raises:
            RuntimeMissing: an agent is not prepared; the message names the command that does it.
        """
        return None

    @classmethod
    def calls_tools(cls, config: ScaffoldConfig) -> bool:
        """Whether the agent offers tools to the policy, whose answers then have to be parsed for calls."""
        return False

    @classmethod
    def resolve(cls, config: ScaffoldConfig, *, step: int, task_id: str, named: str | None) -> ScaffoldConfig:
        """The settings for one task: of another scaffold, if this one stands for several.

        `named` is the scaffold that the pool's index names for the task.
        """
        return config

    def sandbox_config(self, config: SandboxConfig) -> SandboxConfig:
        """`config` as this agent needs it; for its own sandbox only, grading keeps the configured one."""
        return config

    async def prepare(self, sandbox: Sandbox) -> None:
        """Make ready what the agent needs in the started `sandbox`; before its first command, and of no policy's doing.

        Raises:
            RuntimeMissing: the agent is not prepared on this machine.
            SandboxError: the sandbox cannot show it.
        """
        return None

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


def create_scaffold(config: ScaffoldConfig, *, step: int = 0, task_id: str = "", named: str | None = None) -> Scaffold:
    """A fresh scaffold for one trial of the task; its `config` holds the settings that count.

    `named` is the scaffold that the pool's index names for the task, which `mixed` heeds.

    Raises:
        ScaffoldError: no scaffold has this name, or its settings do not fit it.
    """
    config = find_scaffold(config.name).resolve(config, step=step, task_id=task_id, named=named)
    scaffold = find_scaffold(config.name)
    scaffold.check(config)
    return scaffold(config)


def find_scaffold(name: str) -> type[Scaffold]:
    """The scaffold registered as `name`.

    Raises:
        ScaffoldError: there is none.
    """
    if name not in SCAFFOLDS:
        raise ScaffoldError(
            f"scaffold {name!r} is unknown; registered are {', '.join(sorted(SCAFFOLDS))}. "
            "A scaffold of your own is registered by a module named under plugins in the run config"
        )
    return SCAFFOLDS[name]
