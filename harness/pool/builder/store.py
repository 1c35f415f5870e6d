"""The folder of a built pool: tasks, index, and under `.build` all that need not be done again.

```
tasks/ID/              the admitted tasks
index.parquet          of them all, whichever build made them
rejected.jsonl         packages, bugs and tests that are in no task, with reasons
.build/packages/       one record for each package, of what it came to and what of; made last
.build/probes/         one line for each bug tried; .build/admissions/ for each one graded
.build/sources/, vendor/, snapshots/, baselines/
```

Everything is written under another name and renamed, or appended by the line: a build can be killed at any time.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.pool.builder.config import check_target
from harness.pool.index import PoolError, TaskPointer, write_index

INDEX, REJECTED = "index.parquet", "rejected.jsonl"


@dataclass(frozen=True)
class PackageResult:
    """What a package came to. `key` is of all that decides it; `problem` says why there is nothing."""

    label: str
    package: str
    version: str
    key: str
    tasks: tuple[dict[str, Any], ...] = ()
    candidates: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    quarantined: tuple[dict[str, str], ...] = ()
    tests: int = 0
    tests_quarantined: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    problem: str = ""


class Store:
    """A built pool's folder. `root` is absolute."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.tasks = self.root / "tasks"
        self.build = self.root / ".build"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for one build; remove what a killed one left half written.

        Raises:
            PoolError: another build holds it, or it is no built pool.
        """
        check_target(self.root)
        self.build.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)  # sandboxes may run as another user
        with (self.build / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PoolError(f"another build runs on {self.root}; wait for it, or choose another folder") from None
            for leftover in (*self.build.glob("*/.new.*"), *self.tasks.glob(".new.*")):
                shutil.rmtree(leftover, ignore_errors=True)
            yield

    def result(self, label: str) -> PackageResult | None:
        """What an earlier build recorded of a package."""
        try:
            stored = json.loads(self._record(label).read_text(encoding="utf-8"))
            for name in ("tasks", "quarantined", "notes"):
                stored[name] = tuple(stored[name])
            return PackageResult(**stored)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put_result(self, result: PackageResult) -> None:
        """Record what a package came to; the index knows it from then on."""
        write_whole(self._record(result.label), json.dumps(vars(result)).encode())

    def results(self) -> list[PackageResult]:
        """All packages ever built here, by name."""
        labels = sorted(file.stem for file in (self.build / "packages").glob("*.json"))
        return [result for result in map(self.result, labels) if result is not None]

    def write_index(self) -> Path | None:
        """Write the index of all admitted tasks and what was rejected; None if there are no tasks."""
        rows = [
            TaskPointer(facts["instance_id"], self.tasks / facts["instance_id"], "built", facts["extra"])
            for result in self.results()
            for facts in result.tasks
        ]
        lines = [line for result in self.results() for line in _rejected(result)]
        write_whole(self.root / REJECTED, "".join(json.dumps(line) + "\n" for line in lines).encode())
        if not rows:
            (self.root / INDEX).unlink(missing_ok=True)
            return None
        write_index(rows, self.root / INDEX)
        return self.root / INDEX

    def _record(self, label: str) -> Path:
        return self.build / "packages" / f"{label.replace('/', '-')}.json"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    os.replace(partial, path)


def write_tree(folder: Path, files: dict[str, bytes]) -> None:
    """Write files below `folder`."""
    for path, data in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _rejected(result: PackageResult) -> Iterator[dict[str, Any]]:
    if result.problem:
        yield {"package": result.label, "reason": result.problem}
    for test, reason in result.tests_quarantined.items():
        yield {"package": result.label, "test": test, "reason": reason}
    for task in result.quarantined:
        yield {"package": result.label, **task}
    for reason, count in result.reasons.items():
        yield {"package": result.label, "reason": reason, "bugs": count}
