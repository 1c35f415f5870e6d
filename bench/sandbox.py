"""What a sandbox costs: its operations, a graded trial against its bare test command, trials a minute, memory a trial.

The agent answers at once, so that all that is measured is the harness. What is left behind at the end is counted.
"""

import asyncio
import gc
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import psutil

from bench.output import arguments, report, say, scratch
from bench.tiny import tiny_tokenizer
from harness.budgets import BudgetConfig
from harness.grading import grade_with_retries
from harness.patch import Patch
from harness.pool.sample import sample_task
from harness.pool.schema import AgentSection, Grading, TaskConfig, TaskSection, VerifierSection
from harness.pool.snapshot import upload_snapshot
from harness.pool.task import Task
from harness.pool.write import write_task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.sandbox import SandboxConfig, SandboxUnavailable, create_sandbox, require_isolation
from harness.sandbox.guard import finish_stops
from harness.sandbox.leftovers import PREFIX
from harness.scaffolds import edit as _edit  # noqa: F401  (registers the scaffold)
from harness.scaffolds.base import ScaffoldConfig
from harness.trial import TrialSpec, new_session_id, run_trial_with_retries
from harness.verifier import Verdict, VerifierConfig, grade
from trainer.rollout import Generation, Sampling

BACKENDS = ("bubblewrap", "docker")
TESTS, TEST_SECONDS = 50, 0.01
CONCURRENT = 8
CROWD = 512
WINDOW = 4000


def main() -> None:
    """Measure each backend that can be used here."""
    options = arguments(__doc__ or "")
    logging.disable(logging.CRITICAL)
    with scratch(options.root) as root:
        root.chmod(0o755)  # sandboxes may run as another user
        rows, figures = asyncio.run(_measure(root, options.quick))
    report("sandboxes", ["backend", "measure", "p50", "p99"], rows, figures)


async def _measure(root: Path, quick: bool) -> tuple[list[list[object]], dict[str, Any]]:
    task = sample_task(root / "sample")
    slow = _half_a_second(root / "slow")
    rows: list[list[object]] = []
    figures: dict[str, Any] = {f"{name}_overhead_ratio": None for name in BACKENDS}
    rates, leaked = [], 0
    for name in BACKENDS:
        workspaces = root / f"{name}-workspaces"
        workspaces.mkdir()
        workspaces.chmod(0o755)
        config = SandboxConfig(backend=name, root=workspaces)
        try:
            require_isolation(config)
        except SandboxUnavailable as error:
            say(f"{name}: cannot be used here: {error}")
            continue
        await _trial(task, config, _Policy(task))  # what is found out, opened and imported once and for all
        before = _held(workspaces)
        say(f"{name}: operations")
        rows += await _operations(task, config, 5 if quick else 50)
        say(f"{name}: a graded trial against its bare test command")
        ratio, more = await _overhead(slow, config, 3 if quick else 15)
        figures[f"{name}_overhead_ratio"] = ratio
        rows += more
        say(f"{name}: {CONCURRENT} trials at a time")
        rates.append(await _trials_per_minute(task, config, 16 if quick else 96))
        rows.append([name, f"trials a minute, {CONCURRENT} at a time", rates[-1], ""])
        await finish_stops()
        leaked += sum(max(now - then, 0) for now, then in zip(_held(workspaces), before, strict=True))
    crowd = CROWD // 8 if quick else CROWD
    say(f"memory of {crowd} trials at a time")
    figures["trials_per_minute"] = rates[0] if rates else None
    figures["leaked"] = leaked
    figures["rss_mib_per_trial"] = await _memory(task, root / "bubblewrap-workspaces", crowd)
    rows.append(["bubblewrap", "harness memory a trial, MiB", figures["rss_mib_per_trial"], ""])
    return rows, figures


async def _operations(task: Task, config: SandboxConfig, times: int) -> list[list[object]]:
    """Milliseconds of each operation, one after the other on an otherwise idle harness."""
    spent: dict[str, list[float]] = {"start": [], "upload": [], "exec": [], "stop": [], "grade": []}

    async def timed(name: str, operation: Awaitable[Any]) -> None:
        began = time.perf_counter()
        await operation
        spent[name].append(1000 * (time.perf_counter() - began))

    for _ in range(times):
        sandbox = create_sandbox(config)
        try:
            await timed("start", sandbox.start())
            await timed("upload", upload_snapshot(task.snapshot, sandbox))
            await timed("exec", sandbox.exec(["true"], timeout=60))
        finally:
            await timed("stop", sandbox.stop())
        await timed("grade", grade(task, _solution(task), config, VerifierConfig()))
    return [[config.backend, f"{name}, ms", _percentile(ms, 50), _percentile(ms, 99)] for name, ms in spent.items()]


async def _overhead(task: Task, config: SandboxConfig, times: int) -> tuple[float, list[list[object]]]:
    """Median time of a graded trial over that of its test command run bare, taken in turn."""
    bare, graded = [], []
    policy = _Policy(task)
    for _ in range(times):
        bare.append(await asyncio.to_thread(_run_bare, task))
        began = time.perf_counter()
        verdict = await _trial(task, config, policy)
        graded.append(time.perf_counter() - began)
        assert verdict.reward == 1.0, verdict.reason
    rows = [
        [config.backend, "bare test command, ms", 1000 * statistics.median(bare), 1000 * max(bare)],
        [config.backend, "graded trial, ms", 1000 * statistics.median(graded), 1000 * max(graded)],
    ]
    return statistics.median(graded) / statistics.median(bare), rows


async def _trials_per_minute(task: Task, config: SandboxConfig, count: int) -> float:
    policy, limit = _Policy(task), asyncio.Semaphore(CONCURRENT)

    async def one(proxy: ProxyServer) -> None:
        async with limit:
            verdict = await _trial_by(proxy, task, config)
            assert verdict.reward == 1.0, verdict.reason

    began = time.perf_counter()
    async with policy.proxy() as proxy:
        await asyncio.gather(*(one(proxy) for _ in range(count)))
    return 60 * count / (time.perf_counter() - began)


async def _memory(task: Task, workspaces: Path, count: int) -> float:
    """MiB by which the harness grows for each of `count` trials that wait for the policy at the same time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    config = SandboxConfig(root=workspaces)
    everyone = asyncio.Event()
    policy = _Policy(task, gate=everyone, crowd=count)
    gc.collect()
    before = psutil.Process().memory_info().rss
    try:
        async with policy.proxy() as proxy, asyncio.TaskGroup() as trials:
            for _ in range(count):
                trials.create_task(_agent_only(proxy, task, config))
            await policy.crowded.wait()
            grown = psutil.Process().memory_info().rss - before
            everyone.set()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return grown / count / 2**20


async def _trial(task: Task, config: SandboxConfig, policy: "_Policy") -> Verdict:
    async with policy.proxy() as proxy:
        return await _trial_by(proxy, task, config)


async def _trial_by(proxy: ProxyServer, task: Task, config: SandboxConfig) -> Verdict:
    patch = await _agent_only(proxy, task, config)
    return await grade_with_retries(task, patch, config, VerifierConfig())


async def _agent_only(proxy: ProxyServer, task: Task, config: SandboxConfig) -> Patch:
    sampling = Sampling(max_tokens=2000)
    spec = TrialSpec(new_session_id(task.task_id), "bench", task.task_id, task.path, 1, sampling)
    budgets = BudgetConfig(setup_sec=600)
    result = await run_trial_with_retries(spec, proxy, config, ScaffoldConfig(agent_timeout=600), budgets)
    assert result.patch is not None, result.error
    return result.patch


class _Policy:
    """Answers with the solution: at once, or when `gate` opens. `crowded` tells that `crowd` questions wait."""

    def __init__(self, task: Task, gate: asyncio.Event | None = None, crowd: int = 0) -> None:
        tokenizer = tiny_tokenizer()
        answer = f"```python\n{_solution(task).files['solution.py'].decode()}```\n"  # type: ignore[union-attr]
        ids = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
        self.answer = Generation(ids, [-0.5] * len(ids), [0] * len(ids), "stop")
        self.codec = ChatCodec(tokenizer)
        self.gate, self.crowd, self.waiting = gate, crowd, 0
        self.crowded = asyncio.Event()

    def proxy(self) -> ProxyServer:
        return ProxyServer(self, self.codec, WINDOW)

    async def generate(self, prompt_ids: Any, sampling: Sampling, session_id: str) -> Generation:
        self.waiting += 1
        if self.waiting == self.crowd:
            self.crowded.set()
        if self.gate is not None:
            await self.gate.wait()
        return self.answer


def _half_a_second(path: Path) -> Task:
    """A task whose hidden tests take half a second, most of it asleep."""
    methods = [
        f"    def test_{n}(self):\n        time.sleep({TEST_SECONDS})\n        self.assertEqual(add({n}, 3), {n + 3})\n"
        for n in range(TESTS)
    ]
    head = "import time\nimport unittest\n\nfrom solution import add\n\n\nclass TestAdd(unittest.TestCase):\n"
    tests = head + "\n".join(methods)
    grading = Grading(fail_to_pass=[f"test_solution.TestAdd.test_{n}" for n in range(TESTS)])
    config = TaskConfig(
        task=TaskSection(name="testgrad/slow"),
        metadata=grading.model_dump(exclude_none=True),
        agent=AgentSection(timeout_sec=60.0),
        verifier=VerifierSection(timeout_sec=60.0),
    )
    write_task(
        path,
        instruction="Mend `add`.",
        config=config,
        repo={"solution.py": "def add(a, b):\n    return a - b\n"},
        tests={"test_solution.py": tests},
        solution={"solution.py": "def add(a, b):\n    return a + b\n"},
    )
    return Task.load(path)


def _run_bare(task: Task) -> float:
    """Seconds of the hidden tests over the solution, by nothing but Python on the host."""
    assert task.solution is not None
    python = getattr(sys, "_base_executable", sys.executable)  # as inside: without a virtual environment to find
    command = [python, "-B", "-m", "unittest", "discover", "-s", str(task.tests), "-t", str(task.tests)]
    environment = {"PYTHONPATH": str(task.solution), "PATH": os.environ["PATH"]}
    began = time.perf_counter()
    subprocess.run(command, env=environment, capture_output=True, check=True)
    return time.perf_counter() - began


def _solution(task: Task) -> Patch:
    assert task.solution is not None
    return Patch({"solution.py": (task.solution / "solution.py").read_bytes()})


def _held(workspaces: Path) -> tuple[int, ...]:
    """Numbers of child processes, folders, open descriptors and sockets."""
    gc.collect()
    process = psutil.Process()
    owned = [
        path
        for path in Path(tempfile.gettempdir()).glob(PREFIX + "*")
        if f'"{os.getpid()}"' in _read(path / "owner.json")
    ]
    return (
        len(process.children(recursive=True)),
        len(list(workspaces.iterdir())) + len(owned),
        process.num_fds(),
        len(process.net_connections("all")),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


if __name__ == "__main__":
    main()
