"""A trial: one sandboxed execution of a task by an agent, which ends in exactly one outcome.

The outcome follows from what happened, as the sandbox's guard and the proxy's session recorded it, never from which
exception got through. An `infra_error` is what the policy cannot cause. Whoever finds a way to break sandboxes would
find one to escape bad rewards; so a trial that breaks sandbox or proxy again and again, on a machine that is sound
without it, is graded with nothing done.
"""

import asyncio
import dataclasses
import logging
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.budgets import BudgetConfig, outliving
from harness.patch import Patch, take_patch
from harness.pool.environment import sandbox_for
from harness.pool.snapshot import upload_snapshot
from harness.pool.task import Task
from harness.proxy.segment import Segment
from harness.proxy.server import PolicyFailure, ProxyServer
from harness.proxy.session import Session
from harness.sandbox.base import SandboxConfig, SandboxError
from harness.sandbox.guard import GuardedSandbox, guarded
from harness.sandbox.owner import owned_by
from harness.scaffolds.base import Scaffold, ScaffoldConfig, Transcript, create_scaffold
from harness.scaffolds.client import ProxyUnreachable
from harness.turns import turn_of_loop
from harness.verifier import protected_paths
from trainer.rollout import Outcome, Rollout, Sampling

_MAX_SLUG_CHARS = 48
_CONTROL_SECONDS = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrialSpec:
    """What to run. `session_id` is new for every attempt; `group_id` ties the trials of one task in one step.

    `scaffold` is the one that the pool's index names for the task, if it does. `queue_seconds` is how long the trial
    waited for its turn.
    """

    session_id: str
    group_id: str
    task_id: str
    task_path: Path
    step: int
    sampling: Sampling
    attempt: int = 1
    scaffold: str | None = None
    queue_seconds: float = 0.0


@dataclass
class TrialResult:
    """How a trial ended, and what it leaves behind.

    `segments` are all that the proxy captured, `rollouts` the token records of those that are trained: none when the
    policy sampled nothing, and for an infra_error. `patch` is None for an infra_error only. `error` is the text of what
    broke: always there for an infra_error, and for an agent that crashed. `started_at` is in seconds since 1970.
    `timings` are seconds by stage: queue, retries (earlier attempts and pauses), sandbox_start, agent, generate (the
    policy's part of agent), patch, sandbox_stop.
    """

    spec: TrialSpec
    outcome: Outcome
    rollouts: list[Rollout] = field(default_factory=list)
    segments: Sequence[Segment] = ()
    patch: Patch | None = None
    transcript: Transcript = field(default_factory=Transcript)
    scaffold: str = ""
    started_at: float = field(default_factory=time.time)
    error: str | None = None
    timings: dict[str, float] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """The policy's answers, in all segments."""
        return sum(len(segment.turns) for segment in self.segments)

    @property
    def response_length(self) -> int:
        """Tokens that the policy sampled, in all segments."""
        return sum(turn.answer_end - turn.answer_start for segment in self.segments for turn in segment.turns)

    def to_json(self) -> dict[str, Any]:
        """For trial.json: no tokens, no transcript, and of the patch only which files it touches."""
        spec, patch = self.spec, self.patch
        return {
            "session_id": spec.session_id,
            "group_id": spec.group_id,
            "task_id": spec.task_id,
            "task_path": str(spec.task_path),
            "step": spec.step,
            "attempt": spec.attempt,
            "scaffold": self.scaffold,
            "started_at": round(self.started_at, 3),
            "sampling": dataclasses.asdict(spec.sampling),
            "outcome": str(self.outcome),
            "error": self.error,
            "turns": self.turns,
            "response_length": self.response_length,
            "num_segments": len(self.segments),
            "trained_segments": len(self.rollouts),
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
    spec: TrialSpec,
    proxy: ProxyServer,
    sandbox_config: SandboxConfig,
    scaffold_config: ScaffoldConfig,
    budgets: BudgetConfig = BudgetConfig(),  # noqa: B008  (frozen)
) -> TrialResult:
    """Run one trial. Nothing that goes wrong is raised: it becomes the result's outcome and error.

    What the agent can cause is the policy's doing and is graded as it stands, a crash of the scaffold over the
    policy's words included. `infra_error` is for a task that cannot be read, a sandbox that breaks, and a serving side
    that fails.
    """
    trial = _Trial(spec, budgets)
    await trial.run(proxy, sandbox_config, scaffold_config)
    return trial.result


async def run_trial_with_retries(
    spec: TrialSpec,
    proxy: ProxyServer,
    sandbox_config: SandboxConfig,
    scaffold_config: ScaffoldConfig,
    budgets: BudgetConfig = BudgetConfig(),  # noqa: B008  (frozen)
    *,
    attempts: int = 3,
) -> TrialResult:
    """The result of the first attempt that is no infra_error, or of the last; each has its own session and sandbox.

    When at least two attempts were made, every one of them broke its sandbox or the proxy after the policy had acted,
    and a sandbox without the agent holds, the trial is no infra_error but `completed` with an empty patch.
    """
    if attempts < 1:
        raise ValueError(f"attempts is {attempts}; a trial needs at least one")
    began = time.monotonic()
    suspects = 0
    for failures in range(attempts):
        if failures:
            await asyncio.sleep(budgets.pause(failures))
            session_id, attempt = new_session_id(spec.task_id), spec.attempt + 1
            spec = dataclasses.replace(spec, session_id=session_id, attempt=attempt)
        earlier = time.monotonic() - began
        trial = _Trial(spec, budgets)
        await trial.run(proxy, sandbox_config, scaffold_config)
        trial.result.timings["retries"] = earlier
        if trial.result.outcome is not Outcome.INFRA_ERROR:
            return trial.result
        suspects += trial.suspect
        _log.warning("session %s: infra_error, attempt %d: %s", spec.session_id, spec.attempt, trial.result.error)
    if suspects == attempts > 1 and await _machine_is_sound(spec, sandbox_config, scaffold_config, budgets):
        trial.blame()
    return trial.result


class _Trial:
    """The stages of one trial, writing into `result` as they go.

    `suspect` tells that the sandbox or the proxy broke after the policy had acted, so that it may have broken them.
    """

    def __init__(self, spec: TrialSpec, budgets: BudgetConfig) -> None:
        self.spec = spec
        self.budgets = budgets
        self.suspect = False
        self.result = TrialResult(spec, Outcome.INFRA_ERROR, error="the trial did not end")
        self.result.timings["queue"] = spec.queue_seconds
        self._rollouts: list[Rollout] = []

    async def run(self, proxy: ProxyServer, sandbox_config: SandboxConfig, scaffold_config: ScaffoldConfig) -> None:
        """Fill in `result`; raises nothing but cancellation."""
        try:
            with owned_by(trial=self.spec.session_id):
                task = await asyncio.to_thread(Task.load, self.spec.task_path)
                scaffold = _scaffold(self.spec, scaffold_config)
                self.result.scaffold = scaffold.config.name
                self.result.transcript = scaffold.transcript
                await self._confined(task, scaffold, proxy, sandbox_config)
        except Exception as error:
            # Whatever the agent may cause was caught inside; what arrives here it cannot.
            self._fail(error)

    def blame(self) -> None:
        """Make of an infra_error that the policy keeps bringing about its own doing: nothing done."""
        result = self.result
        _log.error("session %s: the trial breaks what runs it each time: %s", self.spec.session_id, result.error)
        result.error = f"the trial breaks what runs it each time: {result.error}"
        result.outcome, result.rollouts = Outcome.COMPLETED, self._rollouts
        result.patch = Patch(rejected=((".", "sandbox or proxy broke each time"),))

    async def _confined(
        self, task: Task, scaffold: Scaffold, proxy: ProxyServer, sandbox_config: SandboxConfig
    ) -> None:
        result, budgets = self.result, self.budgets
        life = budgets.sandbox_life(task, scaffold.config)
        own_config = outliving(scaffold.sandbox_config(sandbox_for(task, sandbox_config)), life)
        sandbox = guarded(own_config, hang_sec=budgets.hang_sec, stop_sec=budgets.stop_sec)
        session: Session | None = None
        try:
            with self._timed("sandbox_start"), sandbox.stage(budgets.setup_sec):
                await sandbox.start()
                await scaffold.prepare(sandbox)
                await upload_snapshot(task.snapshot, sandbox)
            session = self._open_session(proxy, scaffold)
            try:
                if scaffold.runs_inside:
                    session.origin = await sandbox.connect_proxy(await proxy.open_socket(session))
                with self._timed("agent"):
                    outcome = await self._agent(task, sandbox, session, scaffold)
            finally:
                # Before anything else: an agent that still runs must not add tokens to a trial that has ended.
                await proxy.close_session(session)
                result.timings["generate"] = session.generate_seconds
                result.segments = session.capture.segments
            if session.infra_failure is not None and not session.proxy_failed:
                raise PolicyFailure(session.infra_failure)
            outcome = _outcome(outcome, session)
            await turn_of_loop()
            self._rollouts = self._select(session, scaffold.config, outcome)
            self.suspect = result.turns > 0
            if session.infra_failure is not None:
                raise PolicyFailure(session.infra_failure)
            if sandbox.failure is not None:
                raise SandboxError(sandbox.failure)
            with self._timed("patch"), sandbox.stage(budgets.patch_sec):
                patch = await self._patch(task, sandbox)
        finally:
            with self._timed("sandbox_stop"):
                await sandbox.stop()
            if session is not None:  # read last: what the sandbox left running is counted until it stops
                result.counters = session.counters()
        # A sandbox that will not stop costs no finished trial: it is stopped in the background, or by the reaper.
        result.rollouts, result.patch, result.outcome = self._rollouts, patch, outcome

    async def _agent(self, task: Task, sandbox: GuardedSandbox, session: Session, scaffold: Scaffold) -> Outcome:
        """How the agent ended, as far as the sandbox's guard and the session do not know better.

        Raises:
            ProxyUnreachable: the proxy did not answer, though it had refused no request.
            Exception: the agent failed before the policy had said anything, which so cannot be its doing, and not over
                a prompt that is too long.
        """
        self.result.error = None
        try:
            async with asyncio.timeout(self.budgets.agent_sec(task, scaffold.config)) as limit:
                return (await scaffold.run(task, sandbox, session)).outcome
        except Exception as error:
            if isinstance(error, ProxyUnreachable) and not session.rejected:
                raise
            if limit.expired():
                return Outcome.AGENT_TIMEOUT
            if not session.capture.num_turns and not session.overlong:
                raise
            if sandbox.failure is None:
                # The policy's words may well be what crashed the agent; as infra_error, crashing would be a way out.
                _log.exception("session %s: the agent crashed", self.spec.session_id)
                self.result.error = f"the agent crashed: {type(error).__name__}: {error}"
            return Outcome.COMPLETED

    async def _patch(self, task: Task, sandbox: GuardedSandbox) -> Patch:
        """What the agent changed. A workspace that cannot be read although the sandbox holds counts as unchanged."""
        try:
            protected = await asyncio.to_thread(protected_paths, task)
            return await take_patch(task.snapshot, sandbox, protected)
        except Exception as error:
            if sandbox.failure is not None:
                raise
            _log.exception("session %s: the workspace cannot be read", self.spec.session_id)
            return Patch(rejected=((".", f"the workspace cannot be read: {type(error).__name__}: {error}"),))

    def _open_session(self, proxy: ProxyServer, scaffold: Scaffold) -> Session:
        """A session of the proxy, which ends the conversation of an agent that does not count its turns itself."""
        spec, config = self.spec, scaffold.config
        if not scaffold.runs_inside:
            return proxy.open_session(spec.session_id, spec.sampling)
        return proxy.open_session(
            spec.session_id, spec.sampling, max_turns=config.max_turns, no_tool_limit=config.no_tool_limit
        )

    def _select(self, session: Session, config: ScaffoldConfig, outcome: Outcome) -> list[Rollout]:
        """The segments that are trained."""
        return session.capture.rollouts(
            config.segments,
            session_id=self.spec.session_id,
            task_id=self.spec.task_id,
            group_id=self.spec.group_id,
            step=self.spec.step,
            outcome=outcome,
        )

    def _fail(self, error: Exception) -> None:
        """Make the result an infra_error."""
        _log.error("session %s: infra_error: %s", self.spec.session_id, error, exc_info=error)
        self.result.outcome = Outcome.INFRA_ERROR
        self.result.rollouts, self.result.patch = [], None
        self.result.error = f"{type(error).__name__}: {error}"

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.result.timings[stage] = time.monotonic() - started


def _scaffold(spec: TrialSpec, config: ScaffoldConfig) -> Scaffold:
    return create_scaffold(config, step=spec.step, task_id=spec.task_id, named=spec.scaffold)


def _outcome(told: Outcome, session: Session) -> Outcome:
    """How the trial ended, where the session may know better than the agent: an agent's exit code tells nothing."""
    if told is Outcome.AGENT_TIMEOUT:
        return told
    if session.overlong:
        return Outcome.OVERLONG
    return Outcome.MAX_TURNS if session.turns_exhausted else told


async def _machine_is_sound(
    spec: TrialSpec, sandbox_config: SandboxConfig, scaffold_config: ScaffoldConfig, budgets: BudgetConfig
) -> bool:
    """Whether a sandbox holds through all stages when no agent works in it."""
    try:
        task = Task.load(spec.task_path)
        own_config = _scaffold(spec, scaffold_config).sandbox_config(sandbox_for(task, sandbox_config))
        sandbox = guarded(own_config, hang_sec=budgets.hang_sec, stop_sec=budgets.stop_sec)
        try:
            with owned_by(trial=f"{spec.session_id}-control"), sandbox.stage(budgets.setup_sec + budgets.patch_sec):
                await sandbox.start()
                await upload_snapshot(task.snapshot, sandbox)
                await sandbox.exec(["true"], timeout=_CONTROL_SECONDS)
                return (await take_patch(task.snapshot, sandbox)).empty
        finally:
            await sandbox.stop()
    except Exception as error:
        _log.warning("session %s: a sandbox without an agent breaks too: %s", spec.session_id, error)
        return False
