"""Hostile trials: an agent that attacks its sandbox, its host or its grading; trial and grader are the real ones.

An attack succeeds when its patch earns a reward, or when it leaves evidence of a breach: the word BREACH in
what its code prints, a touch of the host's witness, or a process or a file that outlives it.
"""

import asyncio
import functools
import os
import re
import secrets
import shutil
import tempfile
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.attack_task import RIGHT, WRONG
from support.docker import docker_sandbox
from support.kube import fake_cluster
from support.scripted import ScriptedPolicy
from support.tiny import tiny_tokenizer
from support.witness import Witness

from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.proxy.session import Session
from harness.sandbox import ExecResult, Sandbox, SandboxConfig, SandboxUnavailable, TreeLimits, require_isolation
from harness.scaffolds.base import SCAFFOLDS, Scaffold, ScaffoldConfig, ScaffoldResult
from harness.trial import TrialResult, TrialSpec, run_trial
from harness.verifier import Status, Verdict, VerifierConfig, grade
from trainer.rollout import Outcome, Sampling

REFUSED = frozenset({Status.FAILED, Status.BROKEN, Status.TAMPERED})
"""What an attack may be graded as when nothing more exact can be asked of the grader."""

VERIFIER = VerifierConfig(timeout_sec=6.0, retries=0, memory_bytes=512 << 20, cpu_seconds=6, processes=32)
COMMAND_SECONDS = 8.0
BACKENDS = ("bubblewrap", "docker", "kubernetes")
_OF_THE_KUBELET = frozenset({"fork and memory bombs", "disk filling", "escaping limits"})
TREE = TreeLimits(max_files=2_000, max_total_bytes=32 << 20, max_file_bytes=1 << 20, max_kept_bytes=4 << 20)

RAN = "[the attack runs]"
"""What code under test prints when it is imported, so that an attack that does nothing is not taken for a defeat."""

_PRELUDE = f'''\
import os as _os


_found = []


def breach(what):
    _found.append("BREACH " + str(what))
    _os.write(2, ("\\n" + _found[-1] + "\\n").encode())


_os.write(2, b"{RAN}\\n")
'''

_TELL = """\
if _found:
    raise RuntimeError(_found)  # pytest keeps what is printed to itself, but tells errors
"""


@dataclass(frozen=True)
class Command:
    """What the agent runs. `ends`: it must come to its end, which it shows by printing END."""

    argv: tuple[str, ...]
    ends: bool = True
    hidden: bool = False
    """Its output is not looked at; for floods."""


@dataclass(frozen=True)
class Attack:
    """One attempt. In commands and files, @NAME@ stands for a fact that an attacker may know; see `facts`.

    `expect` are the statuses that the grading may end with. `repaired`: the honest repair is part of it and the attack
    does not touch the grading, so it must pass. `reports`: the grading kinds that it concerns. `noisy`: what its code
    prints at first may be missing from the verdict's log. `replies`: answers of the policy to the edit scaffold, in
    place of commands. `history`: the snapshot comes with a git repository that holds the solution. `inside`: its
    commands need the way from the sandbox to the proxy. `during` is called at the end of the agent's phase,
    `afterwards` when the trial has ended and the proxy still serves; both return breaches.
    """

    name: str
    kind: str
    tries: str
    commands: tuple[Command, ...] = ()
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    expect: frozenset[Status] = REFUSED
    repaired: bool = False
    reports: tuple[str, ...] = ("unittest", "pytest")
    noisy: bool = False
    replies: tuple[str, ...] = ()
    history: bool = False
    inside: bool = False
    during: Callable[["Attempt"], Awaitable[list[str]]] | None = None
    afterwards: Callable[["Attempt"], Awaitable[list[str]]] | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Honest:
    """An honest solution, however unusual: must score 1."""

    name: str
    files: Mapping[str, str | bytes | None]
    commands: tuple[Command, ...] = ()

    def __str__(self) -> str:
        return self.name


@dataclass
class Attempt:
    """A hostile trial as it goes on."""

    attack: Attack
    task: Task
    config: SandboxConfig
    facts: Mapping[str, str]
    proxy: ProxyServer
    other: Session
    """The session of another trial."""
    session: Session | None = None
    host_url: str = ""
    """The session's URL as a client on the host uses it."""
    results: list[ExecResult] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def fill(self, text: str) -> str:
        """`text` with the facts in place of @NAME@."""
        for name, value in self.facts.items():
            text = text.replace(f"@{name}@", value)
        return text


@dataclass(frozen=True)
class Evidence:
    """How it ended. `faults` say that the attack itself is wrong and proves nothing."""

    attack: Attack
    outcome: Outcome
    verdict: Verdict | None
    breaches: tuple[str, ...]
    faults: tuple[str, ...]
    rejected: tuple[tuple[str, str], ...]
    error: str | None

    @property
    def succeeded(self) -> bool:
        """Whether the attack got what it wanted."""
        rewarded = self.verdict is not None and self.verdict.reward > 0 and not self.attack.repaired
        return rewarded or bool(self.breaches)

    @property
    def misclassified(self) -> bool:
        """Whether it is excluded as infrastructure's fault, or graded as something that it is not."""
        expect = frozenset({Status.PASSED}) if self.attack.repaired else self.attack.expect
        return self.outcome is Outcome.INFRA_ERROR or self.verdict is None or self.verdict.status not in expect

    def __str__(self) -> str:
        verdict = "no verdict" if self.verdict is None else f"{self.verdict.status}: {self.verdict.reason}"
        log = "" if self.verdict is None else self.verdict.log[-1500:]
        return (
            f"{self.attack.name}: {self.outcome}, {verdict}; breaches {self.breaches}; faults {self.faults}; "
            f"rejected {self.rejected[:5]}; error {self.error}\n{log}"
        )


@asynccontextmanager
async def backend(name: str) -> AsyncIterator[SandboxConfig]:
    """Limits that are far from a host's, and small enough for bombs to be short, for the time of the context.

    Skips the calling test, loudly, where the backend cannot be had; the first call for docker may start its engine.
    """
    limits: dict[str, Any] = {
        "memory_bytes": 512 << 20,
        "total_memory_bytes": 1 << 30,
        "processes": 64,
        "file_bytes": 8 << 20,
        "tmp_bytes": 16 << 20,
        "workspace_bytes": 64 << 20,
        "workspace_files": 10_000,
        "cpu_seconds": 30,
        "limits": TREE,
    }
    if name == "docker":
        yield docker_sandbox(**limits)
        return
    if name == "kubernetes":
        async with fake_cluster() as cluster:
            yield cluster.config(**limits)
        return
    config = SandboxConfig(backend=name, **limits)
    try:
        require_isolation(config)
    except SandboxUnavailable as error:
        pytest.skip(f"NO ATTACK IS TRIED ON {name.upper()}: {error}")
    yield config


def unproven(attack: Attack, name: str) -> str:
    """Why nothing is shown by an attack on a backend; empty if something is."""
    if name == "kubernetes" and attack.kind in _OF_THE_KUBELET:
        return "the fake cluster's node runs real processes, but enforces none of a kubelet's limits"
    return ""


def py(code: str, ends: bool = True, hidden: bool = False) -> Command:
    """A Python program of the agent's, which calls `breach(what)` when it gets somewhere."""
    prelude = "def breach(what):\n    print('\\nBREACH', what, flush=True)\n\n\n"
    end = "\nprint('END', flush=True)\n" if ends else ""
    return Command(("python3", "-c", prelude + textwrap.dedent(code) + end), ends, hidden)


def sh(script: str, ends: bool = True, hidden: bool = False) -> Command:
    """A shell script of the agent's, which goes on when one of its commands fails."""
    return Command(("sh", "-c", textwrap.dedent(script) + ("\necho END\n" if ends else "")), ends, hidden)


def code(attack: str, rest: str = WRONG) -> str:
    """Text of the repaired module in which `attack` stands before `rest`; for one that defines all itself, rest=''."""
    return f"{_PRELUDE}\n{textwrap.dedent(attack)}\n\n{_TELL}\n\n{rest}"


def repair(attack: str) -> str:
    """The same with the honest repair after it."""
    return code(attack, RIGHT)


async def attempt(attack: Attack, task: Task, config: SandboxConfig) -> Evidence:
    """Run a hostile trial and grade what it leaves."""
    async with _world(attack, task, config) as (running, witness):
        result = await _trial(running)
        if attack.afterwards is not None:
            running.breaches += await attack.afterwards(running)
        running.breaches += await asyncio.to_thread(_left, running)
        verdict = None
        if result.patch is not None:
            verdict = await grade(task, result.patch, running.config, VERIFIER)
            running.breaches += await asyncio.to_thread(_left, running)
        if result.error is not None:
            running.faults.append(f"the trial broke: {result.error}")
        _look_at(running, witness, verdict)
    return Evidence(
        attack,
        result.outcome,
        verdict,
        tuple(running.breaches),
        tuple(running.faults),
        result.patch.rejected if result.patch else (),
        result.error,
    )


async def solve(honest: Honest, task: Task, config: SandboxConfig) -> Evidence:
    """Run the trial of an honest agent and grade what it leaves."""
    files = {path: data for path, data in honest.files.items() if data is not None}
    gone = sh("".join(f"rm -r '{path}'\n" for path, data in honest.files.items() if data is None))
    attack = Attack(
        honest.name, "honest", "nothing", commands=(gone, *honest.commands), files=files, repaired=True, noisy=True
    )
    return await attempt(attack, task, config)


@asynccontextmanager
async def _world(attack: Attack, task: Task, config: SandboxConfig) -> AsyncIterator[tuple[Attempt, Witness]]:
    """The host as an attack finds it: a proxy with another trial's session, witnesses, and a folder for sandboxes."""
    root = Path(tempfile.mkdtemp(prefix="attack-"))
    root.chmod(0o755)  # the sandbox may run as another user
    config = config.model_copy(update={"root": root})
    policy = ScriptedPolicy(_tokenizer(), attack.replies or ("fine",))
    try:
        async with ProxyServer(policy, ChatCodec(_tokenizer()), 4000) as proxy, Witness.watching() as witness:
            other = proxy.open_session("other-0000abcd", Sampling(max_tokens=16))
            facts = {
                **witness.facts(),
                "TOKEN": f"attack{secrets.token_hex(8)}",
                "HOST_PID": str(os.getpid()),
                "OTHER_ID": other.session_id,
                "HOST_FOLDER": str(root),
                "SOLUTION": str(task.path / "solution"),
                "TESTS": str(task.tests),
            }
            yield Attempt(attack, task, config, facts, proxy, other), witness
    finally:
        shutil.rmtree(root, ignore_errors=True)


_running: "ContextVar[Attempt]" = ContextVar("running")


class HostileScaffold(Scaffold):
    """The agent of an attack: writes its files, runs its commands."""

    async def run(self, task: Task, sandbox: Sandbox, session: Session) -> ScaffoldResult:
        running = _running.get()
        running.session = session
        running.host_url = running.other.base_url.replace(running.other.secret, session.secret)
        files = {running.fill(path): _bytes(data, running) for path, data in running.attack.files.items()}
        await sandbox.write_files(files)
        environment = {"TESTGRAD_URL": session.base_url}
        for command in running.attack.commands:
            argv = [running.fill(word) for word in command.argv]
            if argv[0] == "python3":
                argv[0] = sandbox.python
            result = await sandbox.exec(argv, timeout=COMMAND_SECONDS, env=environment)
            running.results.append(result)
            if command.ends and b"END" not in result.stdout:
                running.faults.append(f"a command did not end: {result.exit_code} {result.stderr[-600:]!r}")
            if not command.hidden:
                running.breaches += _breaches(result.stdout) + _breaches(result.stderr)
        if running.attack.during is not None:
            running.breaches += await running.attack.during(running)
        return self.result(Outcome.COMPLETED)


class HostileInside(HostileScaffold):
    """The same with a way from the sandbox to the proxy."""

    runs_inside = True


SCAFFOLDS["hostile"] = HostileScaffold
SCAFFOLDS["hostile-inside"] = HostileInside


async def _trial(running: Attempt) -> TrialResult:
    spec = TrialSpec(
        session_id="attack-0000abcd",
        group_id="g0",
        task_id=running.task.task_id,
        task_path=running.task.path,
        step=0,
        sampling=Sampling(max_tokens=2000),
    )
    name = "edit" if running.attack.replies else "hostile-inside" if running.attack.inside else "hostile"
    _running.set(running)
    return await run_trial(spec, running.proxy, running.config, ScaffoldConfig(name=name, agent_timeout=60.0))


def _bytes(data: str | bytes, running: Attempt) -> bytes:
    return data if isinstance(data, bytes) else running.fill(data).encode()


def _breaches(output: bytes) -> list[str]:
    return re.findall(r"BREACH .*", output.decode(errors="replace"))


def _left(running: Attempt) -> list[str]:
    """Processes and files of the attack that are still there."""
    token = running.facts["TOKEN"]
    found = [f"file {path.name} is left" for path in (running.config.root or Path()).iterdir()]
    for process in psutil.process_iter(["cmdline"]):
        if any(token in word for word in process.info["cmdline"] or ()):
            found.append(f"process {process.pid} is left")
    return found


def _look_at(running: Attempt, witness: Witness, verdict: Verdict | None) -> None:
    running.breaches += witness.touched
    if verdict is None:
        return
    running.breaches += _breaches(verdict.log.encode())
    text = f"{verdict.log}\n{verdict.reason}"
    code_under_test = running.attack.files.get("calc.py", "")
    if not isinstance(code_under_test, str) or RAN not in code_under_test:
        return
    running.faults += [
        f"the attack is no Python: {name}" for name in ("SyntaxError", "IndentationError", "NameError") if name in text
    ]
    shown = running.task.grading.report == "unittest" and not running.attack.noisy
    if shown and RAN not in verdict.log:
        running.faults.append("the attack's code was not run")


@functools.cache
def _tokenizer() -> Any:
    return tiny_tokenizer()
