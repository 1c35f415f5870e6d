"""The hidden files of a task: what of `tests/` is laid before the graded code."""

from collections.abc import Iterable
from pathlib import Path

from harness.patch import INTERPRETER_HOOKS, NO_SOURCES
from harness.pool.task import Task

SCRIPT = "test.sh"
"""Harbor's entry. It is no test: only the grading kind `script` shows and runs it."""


def protected_paths(task: Task) -> frozenset[str]:
    """Paths that no patch of `task` may change: its visible tests, and what its hidden tests are called."""
    return frozenset(task.grading.visible_tests) | frozenset(hidden_files(task.tests))


def hidden_files(tests: Path) -> list[str]:
    """Paths of the hidden tests and their data, without Harbor's entry and what hooks into the interpreter."""
    found = []
    for file in sorted(tests.rglob("*")):
        path = file.relative_to(tests)
        hooks = path.name in INTERPRETER_HOOKS or path.suffix in (".pth", ".pyc")
        if file.is_file() and not file.is_symlink() and not hooks and NO_SOURCES.isdisjoint(path.parts):
            found.append(path.as_posix())
    return [path for path in found if path != SCRIPT]


def read_hidden(tests: Path, paths: Iterable[str]) -> dict[str, bytes]:
    """Content of hidden files by path."""
    return {path: (tests / path).read_bytes() for path in paths}
