"""Prove bugs: run a function's hidden tests against its mutants, in a process of their own."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.pool.kata.kata import SOLUTION_FILE, TEST_MODULE, Kata
from harness.pool.kata.operators import Mutant

WORKER = Path(__file__).with_name("worker.py")
WALL_SECONDS = 300.0
"""Last resort for a worker that neither works nor ends; its own limits are far lower."""


class CatalogueError(ValueError):
    """An entry of the catalogue whose source does not do what its rows say."""


@dataclass(frozen=True)
class ProvenBug:
    """A mutant with the ids of the hidden tests that it fails and passes. The correct source passes them all."""

    mutant: Mutant
    fail_to_pass: list[str]
    pass_to_pass: list[str]


def prove(kata: Kata, candidates: Sequence[Mutant], wanted: int) -> list[ProvenBug]:
    """The first `wanted` of `candidates` that fail a hidden test, in their order.

    A mutant that fails only by running too long is a poor task, since its tests say nothing: those come last, and only
    as many as are needed. One that brings the process down is left out.

    Raises:
        CatalogueError: the correct source itself fails a test.
    """
    failing: list[ProvenBug] = []
    hanging: list[ProvenBug] = []
    left = list(candidates)
    while left and len(failing) < wanted:
        correct, *verdicts = _run(kata, [kata.source, *(mutant.source for mutant in left)], wanted - len(failing))
        if wrong := sorted(test for test, word in correct.items() if word != "passed"):
            raise CatalogueError(f"kata {kata.name}: the correct source fails {wrong}; mend its source or its rows")
        for mutant, words in zip(left, verdicts, strict=False):
            passed = [test for test, word in words.items() if word == "passed"]
            bug = ProvenBug(mutant, [test for test in words if test not in passed], passed)
            if "failed" in words.values():
                failing.append(bug)
            elif bug.fail_to_pass:
                hanging.append(bug)
        # The worker ends early when it has enough, which ends this loop too, or when a mutant brought it down.
        left = left[len(verdicts) + 1 :]
    return (failing + hanging)[:wanted]


def _run(kata: Kata, sources: Sequence[str], wanted: int) -> list[dict[str, str]]:
    """Words by test id for each source, in order, as far as the worker came. The first is always there."""
    with tempfile.TemporaryDirectory(prefix="testgrad-kata-") as name:
        root = Path(name)
        (root / "tests").mkdir()
        (root / "tests" / f"{TEST_MODULE}.py").write_text(kata.test_source, encoding="utf-8")
        folders = [root / str(number) for number in range(len(sources))]
        for folder, source in zip(folders, sources, strict=True):
            folder.mkdir()
            (folder / SOLUTION_FILE).write_text(source, encoding="utf-8")
        request = {
            "tests": str(root / "tests"),
            "module": TEST_MODULE,
            "candidates": [str(folder) for folder in folders],
            "wanted": wanted,
        }
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-B", str(WORKER)],
                input=json.dumps(request).encode(),
                capture_output=True,
                timeout=WALL_SECONDS,
                cwd=root,
            )
            output, errors = done.stdout, done.stderr
        except subprocess.TimeoutExpired as stopped:
            output, errors = stopped.stdout or b"", stopped.stderr or b""
    reports = [json.loads(line) for line in output.splitlines(keepends=True) if line.endswith(b"\n")]
    if not reports or not reports[0]["tests"]:
        raise CatalogueError(f"kata {kata.name}: its own tests did not run: {errors.decode(errors='replace')[-500:]}")
    return [report["tests"] for report in reports]
