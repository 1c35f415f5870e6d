"""The base of agents that run inside the sandbox, unmodified: how one is launched, and how its end is read.

What it says goes through the session, whose capture is the record of the trial; what it does to the workspace is read
off the workspace. Of the program itself only its last words are kept, for people.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.proxy.surfaces.base import MODEL_ID
from harness.sandbox.base import ExecResult, Sandbox, SandboxConfig
from harness.scaffolds.base import Scaffold, ScaffoldConfig, ScaffoldResult
from harness.scaffolds.client import ProxyUnreachable
from harness.scaffolds.runtimes import HOME, MOUNT, in_home, require_prepared, roomy
from trainer.rollout import Outcome

API_KEY = "testgrad"
"""What agents that insist on a key are given. The secret is in the URL."""

PATIENCE = 86_400
"""Seconds that an agent's client is told to wait for an answer; what it may take in all is `agent_timeout`."""

INSTRUCTION = "{instruction}"

_KEPT_CHARS = 4000
_TOLD_CHARS = 500
_SPARE_SECONDS = 30.0


class AgentNotStarted(ProxyUnreachable):
    """The agent ended before it had asked the policy anything; so the policy has no part in it."""


@dataclass(frozen=True)
class Launch:
    """A command and what it finds: environment beside the sandbox's own, and input."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""


class InsideScaffold(Scaffold):
    """Shows the prepared runtime to the sandbox, launches the agent in the workspace, and waits for its end.

    A subclass says what to launch. It ends as `completed` however the program ends: limits of turns and of the window
    are the session's to tell, time is the trial's, and an exit code is the policy's doing or nobody's.
    """

    runs_inside = True
    runtime: ClassVar[str]
    """Name of the runtime to mount at `MOUNT`."""

    @classmethod
    def require(cls, config: ScaffoldConfig) -> None:
        require_prepared(cls.runtime, config.runtimes)

    @classmethod
    def calls_tools(cls, config: ScaffoldConfig) -> bool:
        return True

    def sandbox_config(self, config: SandboxConfig) -> SandboxConfig:
        return roomy(config)

    async def prepare(self, sandbox: Sandbox) -> None:
        folder = self.runtime_folder()
        if folder is not None:
            await sandbox.mount_runtime(folder, MOUNT)

    def runtime_folder(self) -> Path | None:
        """The folder of this machine to mount, if any.

        Raises:
            RuntimeMissing: it is not prepared.
        """
        return require_prepared(self.runtime, self.config.runtimes)

    @abstractmethod
    def launch(self, task: Task, sandbox: Sandbox, session: Session) -> Launch:
        """What to run. The runtime is found at `MOUNT`; `HOME` is an empty folder."""

    def own_environment(self, task: Task, session: Session) -> dict[str, str]:
        """What the configuration adds to the environment, with `{base_url}` and the like filled in."""
        values = fillings(task, session)
        return {name: filled(value, values) for name, value in self.config.env.items()}

    def read_end(self, stdout: str) -> dict[str, Any]:
        """What the agent's output tells about its end, for people; it may raise over an output that is no agent's."""
        return {}

    async def run(self, task: Task, sandbox: Sandbox, session: Session) -> ScaffoldResult:
        """See `Scaffold.run`.

        Raises:
            AgentNotStarted: the program ended and had asked the policy nothing.
        """
        launch = self.launch(task, sandbox, session)
        asked = session.requests
        self.transcript.note("agent_started", program=launch.argv[0])
        run = await sandbox.exec(
            in_home([*launch.argv]),
            # The trial's own limit comes first; this one is for whoever calls without.
            timeout=(self.config.agent_timeout or task.agent_timeout) + _SPARE_SECONDS,
            env={**HOME, **launch.env, **self.own_environment(task, session)},
            stdin=launch.stdin.encode("utf-8", "surrogateescape"),
        )
        stdout, stderr = self._words(run, session)
        self.transcript.note(
            "agent_ended",
            exit_code=run.exit_code,
            timed_out=run.timed_out,
            over_limit=run.over_limit,
            stdout=stdout[-_KEPT_CHARS:],
            stderr=stderr[-_KEPT_CHARS:],
            **self._end(stdout),
        )
        if session.requests == asked and not run.timed_out:
            last = (stderr or stdout).strip()[-500:] or "without a word"
            raise AgentNotStarted(
                f"{self.config.name} ended with exit code {run.exit_code} before its first request: {last}"
            )
        return self.result(Outcome.COMPLETED)

    def _end(self, stdout: str) -> dict[str, Any]:
        """What `read_end` tells. Whatever runs inside can write to the agent's output: structures of any depth too."""
        try:
            told = self.read_end(stdout)
            return {name: value if _is_plain(value) else repr(value)[:_TOLD_CHARS] for name, value in told.items()}
        except Exception as error:
            return {"unreadable_end": f"{type(error).__name__}: {error}"[:_TOLD_CHARS]}

    def _words(self, run: ExecResult, session: Session) -> tuple[str, str]:
        """The program's output and complaints, without the session's secret."""
        stdout, stderr = (
            text.decode(errors="replace").replace(session.secret, "***") for text in (run.stdout, run.stderr)
        )
        return stdout, stderr


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _TOLD_CHARS)


def fillings(task: Task, session: Session) -> dict[str, str]:
    """What stands for a trial in configured words, by name."""
    return {
        INSTRUCTION: task.instruction,
        "{base_url}": session.base_url,
        "{anthropic_base_url}": session.anthropic_base_url,
        "{model}": MODEL_ID,
        "{api_key}": API_KEY,
    }


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with each name replaced by its value; a value is never looked through for names."""
    for name, value in values.items():
        before, found, after = text.partition(name)
        if found:
            return filled(before, values) + value + filled(after, values)
    return text


def last_json(stdout: str, kind: str) -> dict[str, Any]:
    """The last line of `stdout` that is a JSON object of the type `kind`; an empty one if there is none."""
    for line in reversed(stdout.splitlines()):
        if f'"{kind}"' in line:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and value.get("type") == kind:
                return value
    return {}
