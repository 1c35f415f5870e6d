"""A trial: one sandboxed execution of a task by an agent, which ends in exactly one outcome."""

import asyncio
import dataclasses
import logging
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.patch import Patch, take_patch
from harness.pool.task import Task
from harness.proxy.server import PolicyFailure, ProxyServer
from harness.proxy.session import Session
from harness.sandbox.base import Sandbox, SandboxConfig, SandboxError, create_sandbox
from harness.scaffolds.base import Scaffold, ScaffoldConfig, Transcript, create_scaffold
from harness.scaffolds.client import ProxyUnreachable
from harness.verifier import protected_paths
from trainer.rollout import Outcome, Rollout, Sampling

_MAX_SLUG_CHARS = 48

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrialSpec:
    """What to run. `session_id` is new for every attempt; `group_id` ties the trials of one task in one step."""

    session_id: str
    group_id: str
    task_id: str
    task_path: Path
    step: int
    sampling: Sampling
    attempt: int = 1


@dataclass
class TrialResult:
    """How a trial ended, and what it leaves behind.

    `rollout` is None when the policy sampled nothing, and for an infra_error; `patch` is None for an infra_error only.
    `error` is the text of what broke: always there for an infra_error, and for an agent that crashed. `timings` are
    seconds by stage.
    """

    spec: TrialSpec
    outcome: Outcome
    rollout: Rollout | None = None
    patch: Patch | None = None
    transcript: Transcript = field(default_factory=Transcript)
    error: str | None = None
    timings: dict[str, float] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For trial.json: no tokens, no transcript, and of the patch only which files it touches."""
        spec, patch, rollout = self.spec, self.patch, self.rollout
        return {
            "session_id": spec.session_id,
            "group_id": spec.group_id,
            "task_id": spec.task_id,
            "task_path": str(spec.task_path),
            "step": spec.step,
            "attempt": spec.attempt,
            "sampling": dataclasses.asdict(spec.sampling),
            "outcome": str(self.outcome),
            "error": self.error,
            "turns": self.transcript.turns,
            "response_length": rollout.response_length if rollout else 0,
            "num_segments": rollout.num_segments if rollout else 0,
            "patch_files": sorted(patch.files) if patch else [],
            "patch_rejected": [list(entry) for entry in patch.rejected] if patch else [],
            "timings": {stage: round(seconds, 4) for stage, seconds in self.timings.items()},
            "counters": self.counters,
        }


def new_session_id(task_id: str) -> str:
    """A fresh session id: a slug of the task's id that is safe in paths and URLs, and eight random hex digits."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", task_id)[:_MAX_SLUG_CHARS].strip(".-")
    return f"{slug or 'task'}-{secrets.token_hex(4)}"


async def run_trial(
    spec: TrialSpec, proxy: ProxyServer, sandbox_config: SandboxConfig, scaffold_config: ScaffoldConfig
) -> TrialResult:
    """Run one trial. Nothing that goes wrong is raised: it becomes the result's outcome and error.

    What the agent can cause is the policy's doing and is graded as it stands, a crash of the scaffold over the
    policy's words included. `infra_error` is for a task that cannot be read, a sandbox that breaks, and a serving side
    that fails.
    """
    trial = _Trial(spec)
    try:
        await trial.run(proxy, sandbox_config, scaffold_config)
    except Exception as error:
        # Whatever the agent may cause was caught inside; what arrives here it cannot.
        trial.fail(error)
    return trial.result


async def run_trial_with_retries(
    spec: TrialSpec,
    proxy: ProxyServer,
    sandbox_config: SandboxConfig,
    scaffold_config: ScaffoldConfig,
    *,
    attempts: int = 3,
    backoff: float = 1.0,
) -> TrialResult:
    """The result of the first attempt that is no infra_error, or of the last; each attempt has its own session id.

    `backoff` is the pause in seconds before the second attempt; it doubles.
    """
    if attempts < 1:
        raise ValueError(f"attempts is {attempts}; a trial needs at least one")
    result = await run_trial(spec, proxy, sandbox_config, scaffold_config)
    for attempt in range(1, attempts):
        if result.outcome is not Outcome.INFRA_ERROR:
            break
        _log.warning("session %s: infra_error, trying again: %s", result.spec.session_id, result.error)
        await asyncio.sleep(backoff * 2 ** (attempt - 1))
        retry = dataclasses.replace(spec, session_id=new_session_id(spec.task_id), attempt=spec.attempt + attempt)
        result = await run_trial(retry, proxy, sandbox_config, scaffold_config)
    return result


class _Trial:
    """The stages of one trial, writing into `result` as they go."""

    def __init__(self, spec: TrialSpec) -> None:
        self.spec = spec
        self.result = TrialResult(spec, Outcome.INFRA_ERROR, error="the trial did not end")

    async def run(self, proxy: ProxyServer, sandbox_config: SandboxConfig, scaffold_config: ScaffoldConfig) -> None:
        result = self.result
        task = Task.load(self.spec.task_path)
        scaffold = create_scaffold(scaffold_config)
        result.transcript = scaffold.transcript
        sandbox = create_sandbox(sandbox_config)
        try:
            with self._timed("sandbox_start"):
                await sandbox.start()
                await sandbox.upload(task.snapshot)
            session = proxy.open_session(self.spec.session_id, self.spec.sampling)
            try:
                with self._timed("agent"):
                    outcome = await self._agent(task, sandbox, session, scaffold)
            finally:
                # Before anything else: an agent that still runs must not add tokens to a trial that has ended.
                await proxy.close_session(session)
                result.timings["generate"] = session.generate_seconds
                result.counters = session.counters()
            if session.infra_failure is not None:
                raise PolicyFailure(session.infra_failure)
            with self._timed("patch"):
                patch = await take_patch(
                    task.snapshot, sandbox, protected_paths(task) | set(task.grading.visible_tests)
                )
        finally:
            with self._timed("sandbox_stop"):
                await sandbox.stop()
        result.rollout = session.capture.rollout(
            session_id=self.spec.session_id,
            task_id=self.spec.task_id,
            group_id=self.spec.group_id,
            step=self.spec.step,
            outcome=outcome,
        )
        result.patch = patch
        result.outcome = outcome

    def fail(self, error: Exception) -> None:
        """Make the result an infra_error."""
        _log.error("session %s: infra_error: %s", self.spec.session_id, error, exc_info=error)
        self.result.outcome = Outcome.INFRA_ERROR
        self.result.rollout = self.result.patch = None
        self.result.error = f"{type(error).__name__}: {error}"

    async def _agent(self, task: Task, sandbox: Sandbox, session: Session, scaffold: Scaffold) -> Outcome:
        """How the agent ended.

        Raises:
            SandboxError: the sandbox broke.
            ProxyUnreachable: the proxy did.
        """
        self.result.error = None
        try:
            async with asyncio.timeout(scaffold.config.agent_timeout or task.agent_timeout) as limit:
                return (await scaffold.run(task, sandbox, session)).outcome
        except (SandboxError, ProxyUnreachable):
            raise
        except Exception as error:
            if limit.expired():
                return Outcome.AGENT_TIMEOUT
            # The policy's words may well be what crashed the agent; as an infra_error, crashing would be a way out.
            _log.exception("session %s: the agent crashed", self.spec.session_id)
            self.result.error = f"the agent crashed: {type(error).__name__}: {error}"
            return Outcome.COMPLETED

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.result.timings[stage] = time.monotonic() - started
