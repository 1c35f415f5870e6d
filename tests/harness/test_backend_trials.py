"""Whole trials on the backends that other tests of trials leave out: what a run needs of them, and their faults."""

import asyncio
import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
from support.docker import docker_sandbox
from support.kube import FakeCluster, fake_cluster
from support.scripted import ScriptedPolicy
from support.tasks import BUGGY, FIXED, write_task
from support.tiny import tiny_tokenizer

from deployments.docker import build_base, daemon
from harness.budgets import BudgetConfig
from harness.checkup import check_backend
from harness.grading import grade_with_retries
from harness.pool.sample import sample_task
from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.sandbox import SANDBOXES, SandboxConfig
from harness.sandbox.docker import DockerSandbox
from harness.sandbox.docker_config import DockerConfig, hosts_of
from harness.sandbox.docker_engine import connect
from harness.sandbox.docker_keeper import Keeper
from harness.sandbox.guard import finish_stops
from harness.scaffolds.base import SCAFFOLDS, Scaffold, ScaffoldConfig, ScaffoldResult
from harness.scaffolds.client import ChatClient
from harness.trial import TrialResult, TrialSpec, run_trial_with_retries
from harness.verifier import Status, VerifierConfig
from trainer.rollout import Outcome, Sampling

BUDGETS = BudgetConfig(hang_sec=30, backoff_sec=0.01, max_backoff_sec=0.1)
ANSWER = f"```python\n{FIXED}```\n"
WORKING = ScaffoldConfig(name="working")


class Working(Scaffold):
    """Writes the policy's answer down, then runs a command over it."""

    async def run(self, task: Task, sandbox: Any, session: Any) -> ScaffoldResult:
        async with ChatClient(session) as policy:
            answer = await policy.complete([{"role": "user", "content": "go on"}])
        code = answer.text.split("```")[1].removeprefix("python\n")
        await sandbox.exec(["sh", "-c", "cat > solution.py"], timeout=30, stdin=code.encode())
        return self.result(Outcome.COMPLETED)


@functools.cache
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(autouse=True)
def working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCAFFOLDS, "working", Working)


async def trial_on(config: SandboxConfig, task_path: Path) -> TrialResult:
    spec = TrialSpec("add-00000000", "g", "add", task_path, 1, Sampling(max_tokens=300))
    async with ProxyServer(ScriptedPolicy(tokenizer(), (ANSWER,)), ChatCodec(tokenizer()), 2000) as proxy:
        result = await run_trial_with_retries(spec, proxy, config, WORKING, BUDGETS)
    await finish_stops()
    return result


async def assert_solved(result: TrialResult, config: SandboxConfig, task_path: Path, attempts: int = 1) -> None:
    """The trial ended in its `attempts`-th attempt as it does without a fault, and earns its reward."""
    assert (result.outcome, result.error) == (Outcome.COMPLETED, None)
    assert result.spec.attempt == attempts and len(result.rollouts) == 1
    assert result.patch is not None and result.patch.files == {"solution.py": FIXED.encode()}
    verifier = VerifierConfig(guess_odds=1.0)
    verdict = await grade_with_retries(Task.load(task_path), result.patch, config, verifier, BUDGETS)
    assert (verdict.status, verdict.reward) == (Status.PASSED, 1.0), verdict.reason


@pytest.mark.parametrize("backend", ["kubernetes", pytest.param("docker", marks=pytest.mark.docker)])
async def test_the_doctor_finds_every_backend_sound(tmp_path: Path, backend: str) -> None:
    task = await asyncio.to_thread(sample_task, tmp_path / "task")
    if backend == "docker":
        checkup = await check_backend(task, docker_sandbox())
    else:
        async with fake_cluster() as cluster:
            checkup = await check_backend(task, cluster.config())
    assert checkup.sound, checkup


def pod_refused(cluster: FakeCluster) -> None:
    cluster.fail("status", method="POST", part="/pods", status=422, message="no such field")


def stream_broken(cluster: FakeCluster) -> None:
    cluster.fail("drop", op="run")


def api_shaken(cluster: FakeCluster) -> None:
    for method in ("POST", "GET", "DELETE"):
        cluster.fail("status", method=method, status=503, times=2, headers={"Retry-After": "0"})


@pytest.mark.parametrize(("fault", "attempts"), [(api_shaken, 1), (pod_refused, 2), (stream_broken, 2)])
async def test_a_cluster_that_fails_costs_an_attempt_and_no_reward(
    tmp_path: Path, fault: Callable[[FakeCluster], None], attempts: int
) -> None:
    task_path = write_task(tmp_path / "add")
    async with fake_cluster() as cluster:
        fault(cluster)
        result = await trial_on(cluster.config(), task_path)
        await assert_solved(result, cluster.config(), task_path, attempts)
        assert cluster.pods == {}


async def test_a_task_with_a_history_is_worked_on_in_a_cluster_as_elsewhere(tmp_path: Path) -> None:
    # a copy with a history of one commit is uploaded, and gone when files are looked at that nobody has changed
    task_path = write_task(tmp_path / "add", {"solution.py": BUGGY, "unchanged.py": "X = 1\n"})
    (task_path / "environment" / "repo" / ".git").mkdir()
    async with fake_cluster() as cluster:
        await assert_solved(await trial_on(cluster.config(), task_path), cluster.config(), task_path)


class Struck(DockerSandbox):
    """A sandbox that something happens to before the operation `at`, once for all; `strike` is told a keeper."""

    at = ""
    strike: Callable[[Keeper], None]

    async def _struck(self, operation: str) -> None:
        if type(self).at == operation and self._keepers:
            type(self).at = ""
            await asyncio.to_thread(type(self).strike, self._keepers[0])

    async def upload(self, *words: Any) -> None:
        await self._struck("upload")
        await super().upload(*words)

    async def exec(self, *words: Any, **options: Any) -> Any:
        await self._struck("exec")
        return await super().exec(*words, **options)

    async def read_tree(self, *words: Any) -> Any:
        await self._struck("read_tree")
        return await super().read_tree(*words)

    async def mount_read_only(self, *words: Any) -> None:
        await self._struck("mount_read_only")
        await super().mount_read_only(*words)


STAGES = ("upload", "exec", "read_tree", "mount_read_only")


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[Keeper], None]], None]:
    """Lets a strike happen to the next sandbox of an engine, before the operation that it is told."""

    def at(stage: str, strike: Callable[[Keeper], None]) -> None:
        monkeypatch.setitem(SANDBOXES, "docker", Struck)
        monkeypatch.setattr(Struck, "at", stage)
        monkeypatch.setattr(Struck, "strike", staticmethod(strike), raising=False)

    return at


@pytest.mark.docker
@pytest.mark.parametrize("stage", STAGES if os.environ.get("TESTGRAD_ALL_DOCKER") else STAGES[1:2])
async def test_a_container_killed_at_any_stage_costs_an_attempt_and_no_reward(
    tmp_path: Path, struck: Any, stage: str
) -> None:
    task_path, config = write_task(tmp_path / "add"), docker_sandbox()
    struck(stage, lambda keeper: keeper.engine.remove(keeper.name))
    await assert_solved_beside_a_fault(task_path, config, stage)
    assert connect(hosts_of(config.docker)[0]).labelled("testgrad.project") == ([], [])


@pytest.mark.docker
@pytest.mark.parametrize("stage", STAGES if os.environ.get("TESTGRAD_ALL_DOCKER") else STAGES[1:2])
async def test_an_engine_killed_and_started_again_costs_an_attempt_and_no_reward(
    tmp_path: Path, struck: Any, stage: str
) -> None:
    docker_sandbox()
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("an engine to kill needs root and dockerd")
    task_path = write_task(tmp_path / "add")
    with daemon.private_engine() as url, ExitStack() as second:
        build_base.build(docker.APIClient(base_url=url, timeout=300))
        config = docker_sandbox(docker=DockerConfig(hosts=[url]))  # type: ignore[list-item]
        struck(stage, lambda keeper: second.enter_context(started_again(url)))
        await assert_solved_beside_a_fault(task_path, config, stage)
        assert connect(config.docker.hosts[0]).labelled("testgrad.project") == ([], [])


async def assert_solved_beside_a_fault(task_path: Path, config: SandboxConfig, stage: str) -> None:
    # of the last stage the grader is struck, which makes its own second try
    result = await trial_on(config, task_path)
    await assert_solved(result, config, task_path, attempts=1 if stage == "mount_read_only" else 2)
    assert Struck.at == "", "the fault was met"


@contextmanager
def started_again(url: str) -> Iterator[None]:
    """The private engine at `url` is killed, and another one started in its place for the time of the context."""
    socket = Path(url.removeprefix("unix://"))
    pid = int((socket.parent / "pid").read_text())
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    os.kill(pid, signal.SIGKILL)
    while daemon.answers(url):
        time.sleep(0.02)
    # what is dead, and waits for a parent to notice, would pass for running
    (socket.parent / "pid").unlink()
    (socket.parent / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)
    with open(socket.parent / "log", "ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as engine:
        try:
            while not daemon.answers(url):
                assert engine.poll() is None, (socket.parent / "log").read_text()[-1500:]
                time.sleep(0.05)
            yield
        finally:
            engine.terminate()
