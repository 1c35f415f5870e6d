"""Faults at every stage of a trial: what becomes of it, and that nothing is left."""

import asyncio
import contextlib
import functools
import gc
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.faulty import FAULTS, Fault, Faults
from support.scripted import ScriptedPolicy
from support.tasks import FIXED, write_task
from support.tiny import tiny_tokenizer

from harness import trial as trial_module
from harness.budgets import BudgetConfig
from harness.grading import grade_with_retries
from harness.patch import Patch
from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.sandbox import SANDBOXES, SandboxConfig, SandboxError, SandboxUnavailable, require_isolation
from harness.sandbox.guard import finish_stops
from harness.sandbox.leftovers import PREFIX
from harness.sandbox.waiting import in_turn
from harness.scaffolds.base import SCAFFOLDS, Scaffold, ScaffoldConfig, ScaffoldResult
from harness.scaffolds.client import ChatClient
from harness.trial import TrialResult, TrialSpec, run_trial, run_trial_with_retries
from harness.verifier import Status, Verdict, VerifierConfig
from trainer.rollout import Outcome, Sampling

TRIALS = int(os.environ.get("TESTGRAD_FAULT_TRIALS", "60"))
CONCURRENT = 64
ATTEMPTS = 6
RATE = 0.2
RIGHT = f"```python\n{FIXED}```\n"
ANSWERS = {
    "right": RIGHT,
    "wrong": "```python\ndef add(a, b):\n    return 5 - a\n```\n",
    "broken": "```python\n1/0\n```\n",
}
BUDGETS = BudgetConfig(
    setup_sec=5, hang_sec=3, patch_sec=5, stop_sec=2, grading_sec=60, backoff_sec=0.01, max_backoff_sec=0.1
)
PATIENT = VerifierConfig(timeout_sec=20, guess_odds=1.0)
WORKING = ScaffoldConfig(name="working")
TRIAL_STAGES = ("start", "upload", "write_files", "exec", "read_tree", "stop")
GRADING_STAGES = ("start", "upload", "write_files", "mount_read_only", "exec", "stop")


@functools.cache
def tokenizer() -> Any:
    return tiny_tokenizer()


class Working(Scaffold):
    """Writes the policy's answer down, then runs a command over it."""

    async def run(self, task: Task, sandbox: Any, session: Any) -> ScaffoldResult:
        self.transcript.say("user", "go on")
        async with ChatClient(session) as policy:
            answer = await policy.complete(self.transcript.messages)
        self.transcript.say("assistant", answer.text)
        await sandbox.write_file("solution.py", answer.text.split("```")[1].removeprefix("python\n").encode())
        await sandbox.exec(["true"], timeout=5)
        return self.result(Outcome.COMPLETED)


@pytest.fixture
def root() -> Iterator[Path]:
    try:
        require_isolation(SandboxConfig())
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation here: {error}")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def broken(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers a backend with the given faults and returns the config that names it."""
    monkeypatch.setitem(SCAFFOLDS, "working", Working)

    def register(faults: Faults) -> SandboxConfig:
        monkeypatch.setitem(SANDBOXES, "faulty", faults.backend())
        return SandboxConfig(backend="faulty", root=root)

    return register


def write_quick_task(path: Path) -> Path:
    """A task whose hidden tests take a shell and no Python: for a thousand of them."""
    write_task(path)
    config = path / "task.toml"
    head, _, _ = config.read_text().partition("[metadata]")
    config.write_text(f'{head}[metadata]\nreport = "script"\n')
    (path / "tests" / "test.sh").write_text(
        'case "$(cat /workspace/solution.py)" in *1/0*) exit 1;; *"a + b"*) reward=1;; *) reward=0;; esac\n'
        "echo $reward > /logs/verifier/reward.txt\n"
    )
    return path


def spec_for(task_path: Path, task_id: str = "add") -> TrialSpec:
    return TrialSpec(f"{task_id}-00000000", "g", task_id, task_path, 1, Sampling(max_tokens=300))


def proxy_for(*script: Any) -> ProxyServer:
    return ProxyServer(ScriptedPolicy(tokenizer(), script or (RIGHT,)), ChatCodec(tokenizer()), 2000)


async def try_once(config: SandboxConfig, task_path: Path, scaffold: ScaffoldConfig = WORKING) -> TrialResult:
    async with proxy_for() as proxy:
        return await run_trial(spec_for(task_path), proxy, config, scaffold, BUDGETS)


async def try_often(
    config: SandboxConfig, task_path: Path, scaffold: ScaffoldConfig = WORKING, attempts: int = 3
) -> TrialResult:
    async with proxy_for() as proxy:
        return await run_trial_with_retries(spec_for(task_path), proxy, config, scaffold, BUDGETS, attempts=attempts)


async def judge(config: SandboxConfig, task_path: Path, patch: Patch, trial: str = "add-1") -> Verdict:
    return await grade_with_retries(
        Task.load(task_path), patch, config, PATIENT, BUDGETS, attempts=ATTEMPTS, trial=trial
    )


class Leaks:
    """What this process holds now, to be compared with what it holds later."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before = self._held()

    def _held(self) -> dict[str, Any]:
        gc.collect()
        process = psutil.Process()
        return {
            "processes": sorted(child.pid for child in process.children(recursive=True)),
            "folders": sorted(path.name for path in (*self.root.glob(PREFIX + "*"), *_own_folders())),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "sockets": len(process.net_connections("all")),
        }

    async def none(self) -> None:
        """Assert that nothing is held that was not before."""
        await finish_stops()
        for _ in range(100):  # connections of the proxy close in their own time
            if (now := self._held()) == self.before:
                return
            await asyncio.sleep(0.05)
        assert now == self.before


def _own_folders() -> Iterator[Path]:
    """Folders of this process in the system's temporary directory, where other processes have theirs."""
    for path in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        try:
            owner = json.loads((path / "owner.json").read_text())
        except (OSError, ValueError):
            continue
        if owner["testgrad.pid"] == str(os.getpid()):
            yield path


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.operation in TRIAL_STAGES], ids=str)
async def test_a_fault_is_an_infra_error_once_and_mended_by_a_fresh_sandbox(broken, root, tmp_path, fault) -> None:
    task_path = write_task(tmp_path / "add")
    config = broken(Faults.at(None))
    await try_once(config, task_path)  # what is opened once and for all
    leaks = Leaks(root)
    faults = Faults.at(fault)
    once = await try_once(broken(faults), task_path)
    assert faults.injected == {str(fault): 1}, "the fault was met"
    await leaks.none()
    if fault.harmless:
        assert (once.outcome, once.error) == (Outcome.COMPLETED, None)
        assert once.patch.files == {"solution.py": FIXED.encode()}
        return
    assert once.outcome is Outcome.INFRA_ERROR and fault.operation in once.error
    assert once.rollouts == [] and once.patch is None
    if fault.kind == "hangs":
        return  # once is enough to wait for; the trial goes on as after any other fault
    retried = await try_often(broken(Faults.at(fault)), task_path)
    assert retried.outcome is Outcome.COMPLETED and retried.spec.attempt == 2
    assert retried.patch.files == {"solution.py": FIXED.encode()}
    assert retried.rollouts[0].session_id == retried.spec.session_id != "add-00000000"
    assert retried.timings["retries"] > 0
    await leaks.none()


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.operation in GRADING_STAGES and f.kind != "hangs"], ids=str)
async def test_a_fault_of_the_grading_changes_no_verdict(broken, root, tmp_path, fault) -> None:
    task_path = write_task(tmp_path / "add")
    patch = Patch({"solution.py": FIXED.encode()})
    assert (await judge(broken(Faults.at(None)), task_path, patch)).status is Status.PASSED
    leaks = Leaks(root)
    faults = Faults.at(fault)
    verdict = await judge(broken(faults), task_path, patch)
    assert faults.injected == {str(fault): 1}, "the fault was met"
    assert (verdict.status, verdict.reward) == (Status.PASSED, 1.0)
    await leaks.none()


async def test_a_grading_that_hangs_is_tried_again(broken, root, tmp_path) -> None:
    task_path = write_task(tmp_path / "add")
    leaks = Leaks(root)
    hangs = [Fault(operation, "hangs") for operation in ("start", "upload", "stop")]
    verdict = await judge(broken(Faults.at(*hangs)), task_path, Patch({"solution.py": FIXED.encode()}))
    assert verdict.status is Status.PASSED
    await leaks.none()


async def test_a_machine_that_stays_broken_is_an_infra_error_that_is_left_out(broken, root, tmp_path) -> None:
    task_path = write_task(tmp_path / "add")
    leaks = Leaks(root)
    config = broken(Faults(lambda trial, n: Fault("upload", "full")))
    result = await try_often(config, task_path)
    assert result.outcome is Outcome.INFRA_ERROR and result.spec.attempt == 3 and result.rollouts == []
    assert (await judge(config, task_path, Patch())).status is Status.INFRA_ERROR
    await leaks.none()


@pytest.mark.parametrize("machine_is_sound", [True, False])
async def test_who_breaks_each_sandbox_gets_no_way_out(broken, tmp_path, monkeypatch, machine_is_sound) -> None:
    async def breaks_it(self: Scaffold, task: Task, sandbox: Any, session: Any) -> ScaffoldResult:
        async with ChatClient(session) as policy:
            await policy.complete([{"role": "user", "content": "go"}])
        try:
            await sandbox.exec(["break", "out"], timeout=5)
        except SandboxError:
            pass  # swallowed: it is known all the same
        return self.result(Outcome.COMPLETED)

    monkeypatch.setitem(SCAFFOLDS, "breaks", type("Breaks", (Scaffold,), {"run": breaks_it}))
    config = broken(Faults.at(None))
    backend = SANDBOXES["faulty"]
    sound = backend.exec

    async def exec_(self: Any, argv: Any, **options: Any) -> Any:
        if argv[0] == "break" or not machine_is_sound:
            raise SandboxError("the container is gone")
        return await sound(self, argv, **options)

    monkeypatch.setattr(backend, "exec", exec_)
    result = await try_often(config, write_task(tmp_path / "add"), ScaffoldConfig(name="breaks"))
    assert result.spec.attempt == 3 and "the container is gone" in result.error
    if machine_is_sound:
        assert result.outcome is Outcome.COMPLETED
        assert result.patch.files == {} and result.patch.rejected
        assert result.rollouts[0].session_id == result.spec.session_id
    else:
        assert (result.outcome, result.rollouts, result.patch) == (Outcome.INFRA_ERROR, [], None)


async def test_one_attempt_is_no_proof_against_the_policy(broken, tmp_path) -> None:
    result = await try_often(broken(Faults.at(Fault("exec", "dies"))), write_task(tmp_path / "add"), attempts=1)
    assert result.outcome is Outcome.INFRA_ERROR


@pytest.mark.parametrize("machine_is_sound", [True, False])
async def test_a_patch_that_breaks_each_grading_scores_zero(broken, tmp_path, monkeypatch, machine_is_sound) -> None:
    config = broken(Faults.at(None))
    backend = SANDBOXES["faulty"]
    sound = backend.exec

    async def exec_(self: Any, argv: Any, **options: Any) -> Any:
        text = await self.inner.read_file("solution.py", 10_000)
        if b"BREAK" in text or not machine_is_sound:
            raise SandboxError("the container is gone")
        return await sound(self, argv, **options)

    monkeypatch.setattr(backend, "exec", exec_)
    verdict = await judge(config, write_task(tmp_path / "add"), Patch({"solution.py": b"# BREAK\n"}))
    assert verdict.reward == 0.0
    assert verdict.status is (Status.BROKEN if machine_is_sound else Status.INFRA_ERROR)


async def test_a_command_that_goes_on_past_its_deadline_is_no_agent_timeout(broken, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("harness.sandbox.guard._GRACE", 0.1)
    task_path = write_task(tmp_path / "add", agent_timeout=1)

    async def waits(self: Scaffold, task: Task, sandbox: Any, session: Any) -> ScaffoldResult:
        await sandbox.exec(["true"], timeout=0.1)
        return self.result(Outcome.COMPLETED)

    monkeypatch.setitem(SCAFFOLDS, "waits", type("Waits", (Scaffold,), {"run": waits}))
    config = broken(Faults.at(Fault("exec", "hangs")))
    async with proxy_for() as proxy:
        patient = BUDGETS.model_copy(update={"hang_sec": 600})
        result = await run_trial(spec_for(task_path), proxy, config, ScaffoldConfig(name="waits"), patient)
    assert result.outcome is Outcome.INFRA_ERROR and "exec" in result.error


async def test_waiting_in_a_queue_is_neither_hanging_nor_setup(broken, tmp_path, monkeypatch) -> None:
    queue = asyncio.Semaphore(0)

    async def queues(self: Any) -> None:
        async with in_turn(queue):
            await self.inner.start()

    config, task_path = broken(Faults.at(None)), write_task(tmp_path / "add")
    monkeypatch.setattr(SANDBOXES["faulty"], "start", queues)
    short = BUDGETS.model_copy(update={"setup_sec": 5.0, "hang_sec": 5.0})
    async with proxy_for() as proxy:
        running = asyncio.create_task(run_trial(spec_for(task_path), proxy, config, WORKING, short))
        await asyncio.sleep(6)
        assert not running.done()
        queue.release()
        assert (await running).outcome is Outcome.COMPLETED


async def test_words_of_the_policy_that_are_no_command_are_its_own_doing(broken, tmp_path, monkeypatch) -> None:
    commands: list[Any] = [["x" * (200 << 10)], ["a\0b"], [], [1], ["\ud800"], ["true", *["y" * 1000] * 2000]]

    async def odd(self: Scaffold, task: Task, sandbox: Any, session: Any) -> ScaffoldResult:
        async with ChatClient(session) as policy:
            await policy.complete([{"role": "user", "content": "what to do?"}])
        await sandbox.exec(commands.pop(), timeout=5)
        return self.result(Outcome.COMPLETED)

    monkeypatch.setitem(SCAFFOLDS, "odd", type("Odd", (Scaffold,), {"run": odd}))
    config, task_path = broken(Faults.at(None)), write_task(tmp_path / "add")
    while commands:
        result = await try_once(config, task_path, ScaffoldConfig(name="odd"))
        assert result.outcome is Outcome.COMPLETED and "crashed" in result.error


async def test_a_refused_request_that_ends_the_agent_is_its_own_doing(broken, tmp_path, monkeypatch) -> None:
    async def odd(self: Scaffold, task: Task, sandbox: Any, session: Any) -> ScaffoldResult:
        async with ChatClient(session) as policy:
            await policy.complete([{"role": "user", "content": "what to do?"}])
            await policy.complete([])
        return self.result(Outcome.COMPLETED)

    monkeypatch.setitem(SCAFFOLDS, "odd", type("Odd", (Scaffold,), {"run": odd}))
    result = await try_once(broken(Faults.at(None)), write_task(tmp_path / "add"), ScaffoldConfig(name="odd"))
    assert result.outcome is Outcome.COMPLETED and "crashed" in result.error


async def test_a_workspace_that_cannot_be_read_counts_as_unchanged(broken, tmp_path, monkeypatch) -> None:
    async def chokes(*args: Any) -> Patch:
        raise RecursionError("a tree too deep")

    monkeypatch.setattr(trial_module, "take_patch", chokes)
    result = await try_once(broken(Faults.at(None)), write_task(tmp_path / "add"))
    assert result.outcome is Outcome.COMPLETED and result.patch.files == {}
    assert "too deep" in result.patch.rejected[0][1]


async def test_cancelling_at_any_operation_leaves_nothing(broken, root, tmp_path) -> None:
    task_path = write_task(tmp_path / "add")
    patch = Patch({"solution.py": FIXED.encode()})
    faults = Faults.at(None)
    config = broken(faults)

    async def trial() -> None:
        await try_once(config, task_path)
        await judge(config, task_path, patch)

    operations: list[str] = []
    faults.on_operation = operations.append
    await trial()
    leaks = Leaks(root)
    assert set(operations) == {*TRIAL_STAGES, *GRADING_STAGES}
    for n in range(len(operations)):
        for moment in (0.0, 0.002):  # at the operation's first step, and in the middle of it
            left = [n]
            running = asyncio.create_task(trial())

            def cancel(operation: str, left: list[int] = left, task: Any = running, moment: float = moment) -> None:
                if left[0] == 0:
                    asyncio.get_running_loop().call_later(moment, task.cancel)
                left[0] -= 1

            faults.on_operation = cancel
            with contextlib.suppress(asyncio.CancelledError):  # the last operation may be over before
                await running
            faults.on_operation = lambda operation: None
            await leaks.none()


def test_pauses_grow_differ_and_end() -> None:
    budgets = BudgetConfig(backoff_sec=1, max_backoff_sec=10)
    pauses = [[budgets.pause(failures) for _ in range(50)] for failures in (1, 2, 3, 40)]
    for longest, seen in zip((1, 2, 4, 10), pauses, strict=True):
        assert longest / 2 <= min(seen) < max(seen) <= longest and len(set(seen)) > 40


def test_a_sandbox_outlives_its_budgets(tmp_path) -> None:
    task = Task.load(write_task(tmp_path / "add", agent_timeout=100))
    budgets = BudgetConfig(setup_sec=1, hang_sec=2, patch_sec=4, stop_sec=8)
    assert budgets.sandbox_life(task, ScaffoldConfig()) > 115
    assert budgets.sandbox_life(task, ScaffoldConfig(agent_timeout=500)) > 515


async def test_trials_on_a_machine_that_breaks_a_fifth_of_them(broken, root, tmp_path, caplog) -> None:
    task_path = write_quick_task(tmp_path / "add")
    task = Task.load(task_path)
    kinds = list(ANSWERS)

    sampler = ScriptedPolicy(tokenizer(), ())

    @functools.cache
    def sampled(kind: str, sampling: Sampling) -> Any:
        return sampler.sample(ANSWERS[kind], sampling)

    def answer(call: Any) -> Any:
        return sampled(kinds[int(call.session_id[1:5]) % len(kinds)], call.sampling)

    async def one(n: int, proxy: ProxyServer, config: SandboxConfig) -> tuple[TrialResult, Verdict]:
        task_id = f"t{n:04}"
        result = await run_trial_with_retries(
            spec_for(task_path, task_id), proxy, config, WORKING, BUDGETS, attempts=ATTEMPTS
        )
        assert result.patch is not None, result.error
        trial = f"{task_id}-grading"
        return result, await grade_with_retries(
            task, result.patch, config, PATIENT, BUDGETS, attempts=ATTEMPTS, trial=trial
        )

    async def all_of(count: int, config: SandboxConfig) -> list[tuple[TrialResult, Verdict]]:
        limit = asyncio.Semaphore(CONCURRENT)

        async def limited(n: int, proxy: ProxyServer) -> tuple[TrialResult, Verdict]:
            async with limit:
                return await one(n, proxy, config)

        async with proxy_for(answer) as proxy:
            return await asyncio.gather(*(limited(n, proxy) for n in range(count)))

    sound = await all_of(len(kinds), broken(Faults.at(None)))
    assert [verdict.status for _, verdict in sound] == [Status.PASSED, Status.FAILED, Status.BROKEN]
    leaks = Leaks(root)
    caplog.set_level(logging.CRITICAL)  # a fault is told with its traceback, and there are hundreds
    faults = Faults.seeded(7, RATE, FAULTS)
    for n, (result, verdict) in enumerate(await all_of(TRIALS, broken(faults))):
        expected, expected_verdict = sound[n % len(kinds)]
        assert (result.outcome, result.patch.files) == (expected.outcome, expected.patch.files)
        assert list(result.rollouts[0].token_ids) == list(expected.rollouts[0].token_ids)
        assert (verdict.status, verdict.reward, verdict.tests) == (
            expected_verdict.status, expected_verdict.reward, expected_verdict.tests
        )  # fmt: skip
    assert faults.injected.total() > RATE * TRIALS
    met = set(faults.injected) & set(map(str, FAULTS))
    # a thousand trials meet them all
    assert len(met) >= len(FAULTS) * min(TRIALS / 1000 + 0.3, 1.0), set(map(str, FAULTS)) - met
    await leaks.none()
