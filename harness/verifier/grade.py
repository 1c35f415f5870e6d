"""Grading: the patch, in a fresh sandbox, under the hidden tests; the verdict is computed here, on the host."""

import asyncio
import json
import random
import secrets
import time
from pathlib import Path

from harness.patch import Patch, apply, drop_reason, filter_patch
from harness.pool.task import Task
from harness.sandbox import WORKSPACE, ExecResult, SandboxConfig, SandboxError, WorkspaceError, create_sandbox
from harness.verifier.config import VerifierConfig
from harness.verifier.report import Judgement, judge
from harness.verifier.sentinels import SentinelTests, add_sentinels
from harness.verifier.verdict import Status, Verdict

_RUNNER = Path(__file__).with_name("runner.py").read_bytes()
_GRACE = 5.0
"""Seconds beyond the runner's own deadline after which it is killed from outside."""


class GradingError(ValueError):
    """A task that this grader cannot grade; the message names the field and the mend."""


def protected_paths(task: Task) -> frozenset[str]:
    """Paths that no patch of `task` may change: its visible tests, and what its hidden tests are called."""
    return frozenset(task.grading.visible_tests) | frozenset(_hidden_files(task.tests))


async def grade(task: Task, patch: Patch, config: SandboxConfig, verifier: VerifierConfig) -> Verdict:
    """Judge `patch` by the hidden tests of `task`.

    Whatever the patch does to its grading, reward 0 is the most it gets. `infra_error` is returned, not raised, and
    only when no sandbox could be made.

    Raises:
        GradingError: the task asks for a way of grading that does not exist.
        WorkspaceError: the task's snapshot cannot be copied.
    """
    if task.grading.test_command is not None:
        raise GradingError(f"{task.task_id}: metadata.test_command is not supported by this grader; remove it")
    started = time.monotonic()
    patch = await asyncio.to_thread(filter_patch, patch, task.snapshot, protected_paths(task))
    runs = 0
    while True:
        runs += 1
        try:
            judgement, log = await _run(task, patch, _grading_config(config, verifier), verifier)
        except SandboxError as error:
            judgement, log = Judgement(Status.INFRA_ERROR, str(error), repeat=True), ""
        if not judgement.repeat or runs > verifier.retries:
            break
    return Verdict(
        reward=1.0 if judgement.status is Status.PASSED else 0.0,
        status=judgement.status,
        reason=judgement.reason,
        tests=dict(judgement.tests),
        seconds=time.monotonic() - started,
        log=log,
        runs=runs,
    )


async def _run(task: Task, patch: Patch, config: SandboxConfig, verifier: VerifierConfig) -> tuple[Judgement, str]:
    """One run of the tests in a sandbox of its own."""
    expected = [*task.grading.fail_to_pass, *task.grading.pass_to_pass]
    nonce = secrets.token_hex(16)
    async with create_sandbox(config) as sandbox:
        tests, _ = await asyncio.gather(asyncio.to_thread(_tests_with_sentinels, task), sandbox.upload(task.snapshot))
        sources = _sources(expected, tests)
        try:
            await apply(patch, sandbox)
        except WorkspaceError as error:
            return Judgement(Status.BROKEN, f"the patch cannot be applied: {error}"), ""
        await sandbox.mount_read_only("/grader", {"runner.py": _RUNNER})
        await sandbox.mount_read_only("/tests", {**tests.files, **dict.fromkeys(map(_path, sources), b"")})
        limit = min(verifier.timeout_sec, task.verifier_timeout)
        result = await sandbox.exec(
            [sandbox.python, "-I", "-S", "-B", "-X", "utf8", "/grader/runner.py"],
            stdin=_job(nonce, limit, expected, tests, sources),
            timeout=limit + _GRACE,
        )
    judgement = judge(result, nonce, expected, tests.twins)
    return judgement, _log(judgement, result, verifier.log_bytes)


def _tests_with_sentinels(task: Task) -> SentinelTests:
    files = {path: (task.tests / path).read_bytes() for path in _hidden_files(task.tests)}
    return add_sentinels(files, [*task.grading.fail_to_pass, *task.grading.pass_to_pass], random.SystemRandom())


def _hidden_files(tests: Path) -> list[str]:
    """Paths of the hidden tests and their data, without entry scripts and without what hooks into the interpreter."""
    found = []
    for file in sorted(tests.rglob("*")):
        path = file.relative_to(tests).as_posix()
        if file.is_file() and not file.is_symlink() and path != "test.sh" and not drop_reason(path, tests):
            found.append(path)
    return found


def _sources(expected: list[str], tests: SentinelTests) -> dict[str, str]:
    """Text of each module that has tests. It reaches the runner by its input; on disk an empty file takes its place."""
    modules = {test_id.rsplit(".", 2)[0] for test_id in (*expected, *tests.twins)}
    return {module: tests.files[_path(module)].decode("utf-8") for module in sorted(modules)}


def _path(module: str) -> str:
    return module.replace(".", "/") + ".py"


def _job(nonce: str, deadline: float, expected: list[str], tests: SentinelTests, sources: dict[str, str]) -> bytes:
    ids = sorted({*expected, *tests.twins})  # sentinels among the others, each beside the tests of its class
    rows = [[test_id, *test_id.rsplit(".", 2)] for test_id in ids]
    places = {"path": [WORKSPACE, "/tests"], "tests_dir": "/tests"}
    return json.dumps({"nonce": nonce, "deadline": deadline, "tests": rows, "sources": sources, **places}).encode()


def _grading_config(config: SandboxConfig, verifier: VerifierConfig) -> SandboxConfig:
    return config.model_copy(
        update={
            "memory_bytes": verifier.memory_bytes,
            "cpu_seconds": verifier.cpu_seconds,
            "processes": verifier.processes,
            "output_bytes": max(config.output_bytes, 4 << 20),  # the whole report must come through
        }
    )


def _log(judgement: Judgement, result: ExecResult, limit: int) -> str:
    """What people look at to understand a verdict: the end of the output, then the tests that did not pass."""
    details = "".join(f"{name}: {text}\n" for name, text in judgement.details.items())
    output = result.stderr[-limit:].decode(errors="replace")
    return f"{output}\n{details}"[-limit:].strip()
