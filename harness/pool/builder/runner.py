"""Runs of a package's suite in sandboxes, many to a sandbox, each in a process of its own there."""

import asyncio
import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.pool.builder.layout import SETTINGS, Layout
from harness.sandbox import WORKSPACE, Sandbox, SandboxConfig, create_sandbox
from harness.verifier import inside as grader_inside
from harness.verifier.pytest_runtime import runtime_archive

WORKER = Path(__file__).parent / "inside" / "worker.py"
GRADERS_CHILD = Path(grader_inside.__path__[0]) / "pytest_child.py"
_WALL_FACTOR, _WALL_EXTRA = 20.0, 30.0
"""A run's wall time is bounded by so much of its processor time: on a crowded machine it waits most of the time."""


@dataclass(frozen=True)
class SuiteRun:
    """One run to make. `tests` are ids, None for all of `files`; `seconds` are of the processor."""

    key: str
    files: tuple[str, ...]
    tests: tuple[str, ...] | None = None
    replaced: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 60.0
    trace: bool = False
    reverse: bool = False


@dataclass(frozen=True)
class TestEnd:
    """How a test ended. `detail` is its exception, `line` the line of the test's file at which it was raised, or 0."""

    __test__ = False

    status: str
    seconds: float
    detail: str = ""
    line: int = 0


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `startup` is processor time before the first test; `lines` are masks by test and file."""

    key: str
    ending: Literal["ended", "hang", "crash"]
    tests: Mapping[str, TestEnd]
    notes: tuple[str, ...] = ()
    startup: float = 0.0
    modules: tuple[str, ...] = ()
    lines: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class SuiteRunner:
    """Runs the suite of one package. `modules` are files of it that are worth compiling ahead."""

    def __init__(
        self,
        snapshot: Path,
        layout: Layout,
        config: SandboxConfig,
        limit: asyncio.Semaphore,
        modules: Iterable[str] = (),
    ) -> None:
        self.snapshot, self.layout, self.limit = snapshot, layout, limit
        self.modules = tuple(modules)
        self.config = config.model_copy(update={"output_bytes": 64 << 20, "cpu_seconds": 7200, "processes": 256})

    async def run(self, runs: Sequence[SuiteRun]) -> list[RunResult]:
        """The results of `runs`, in their order. A run that brings its sandbox down has crashed; the others go on.

        Raises:
            SandboxError: no sandbox can be made.
        """
        results: list[RunResult] = []
        left = list(runs)
        while left:
            async with self.limit:
                found, complaint = await self._in_sandbox(left)
            results += found
            left = left[len(found) :]
            if left:
                results.append(RunResult(left[0].key, "crash", {}, (complaint,)))
                left = left[1:]
        return results

    async def _in_sandbox(self, runs: Sequence[SuiteRun]) -> tuple[list[RunResult], str]:
        hidden = self.layout.hidden
        sources = {path: data.decode("utf-8") for path, data in hidden.items() if path.endswith(".py")}
        files = {path: b"" if path in sources else data for path, data in hidden.items()}
        programs = {"worker.py": WORKER.read_bytes(), "pytest_child.py": GRADERS_CHILD.read_bytes()}
        job = {
            "root": WORKSPACE,
            "settings": f"{WORKSPACE}/{SETTINGS}",
            "runtime": "/grader/pytest.zip",
            "sources": {f"{WORKSPACE}/{path}": text for path, text in sources.items()},
            "modules": [f"{WORKSPACE}/{path}" for path in self.modules],
            "traced": list(self.layout.roots),
            "runs": [_request(run) for run in runs],
        }
        timeout = sum(_wall(run) for run in runs) + 60
        async with create_sandbox(self.config) as sandbox:
            await sandbox.upload(self.snapshot)
            await self._lay(sandbox, files, programs)
            result = await sandbox.exec(
                [sandbox.python, "-I", "-S", "-B", "-X", "utf8", "/grader/worker.py"],
                stdin=json.dumps(job).encode(),
                timeout=timeout,
            )
        keys = [run.key for run in runs]
        results = await asyncio.to_thread(_read, result.stdout, keys)
        complaint = result.over_limit or result.stderr[-300:].decode(errors="replace") or f"code {result.exit_code}"
        return results, complaint

    async def _lay(self, sandbox: Sandbox, files: Mapping[str, bytes], programs: Mapping[str, bytes]) -> None:
        await sandbox.write_files(files)
        runtime = await asyncio.to_thread(runtime_archive)
        await sandbox.mount_read_only("/grader", {**programs, "pytest.zip": runtime})


def _request(run: SuiteRun) -> dict[str, Any]:
    return {
        "key": run.key,
        "files": [f"{WORKSPACE}/{path}" for path in run.files],
        "tests": None if run.tests is None else list(run.tests),
        "replaced": {f"{WORKSPACE}/{path}": text for path, text in run.replaced.items()},
        "seconds": run.seconds,
        "wall": _wall(run),
        "trace": run.trace,
        "reverse": run.reverse,
    }


def _wall(run: SuiteRun) -> float:
    return run.seconds * _WALL_FACTOR + _WALL_EXTRA


def _read(stdout: bytes, keys: Sequence[str]) -> list[RunResult]:
    """The results that are whole and in order: what comes after a line that is not, nobody vouches for."""
    results = []
    for line, key in zip(stdout.splitlines(keepends=True), keys, strict=False):
        try:
            told = json.loads(line)
            assert line.endswith(b"\n") and told["key"] == key
            results.append(_result(told))
        except (ValueError, KeyError, TypeError, AssertionError, zlib.error):
            break
    return results


def _result(told: dict[str, Any]) -> RunResult:
    tests = {str(row[0]): TestEnd(str(row[1]), float(row[2]), str(row[3]), int(row[4])) for row in told["tests"]}
    lines: dict[str, dict[str, int]] = {}
    if told.get("lines"):
        packed = json.loads(zlib.decompress(base64.b64decode(told["lines"])))
        for test, masks in packed.items():
            lines[test] = {_relative(file): int(mask, 16) for file, mask in masks.items()}
    return RunResult(
        key=told["key"],
        ending=told["ending"] if told["ending"] in ("hang", "crash") else "ended",
        tests=tests,
        notes=tuple(map(str, told["notes"])),
        startup=float(told.get("seconds", 0.0)),
        modules=tuple(map(_relative, told.get("modules", ()))),
        lines=lines,
    )


def _relative(path: str) -> str:
    return path.removeprefix(f"{WORKSPACE}/")
