"""Writes small tasks in Harbor's directory format."""

from collections.abc import Mapping, Sequence
from pathlib import Path

BUGGY = "def add(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
TEST = (
    "import unittest\n\nfrom solution import add\n\n\nclass TestAdd(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"
)
INSTRUCTION = "The function `add` in solution.py has a bug. It should add its arguments."


def write_task(
    path: Path,
    files: Mapping[str, str | bytes] | None = None,
    visible_tests: Sequence[str] = (),
    agent_timeout: float = 60,
) -> Path:
    """A task whose repository holds `files` (else solution.py with a bug) and whose hidden test is `TEST`."""
    written: dict[str, str | bytes] = {
        "instruction.md": f"{INSTRUCTION}\n",
        "tests/test_solution.py": TEST,
        "task.toml": (
            'schema_version = "1.4"\n[task]\nname = "test/task"\n'
            f"[agent]\ntimeout_sec = {agent_timeout}\n[verifier]\ntimeout_sec = 60\n"
            '[metadata]\nfail_to_pass = ["test_solution.TestAdd.test_add"]\n'
            f"visible_tests = {list(visible_tests)!r}\n"
        ),
    }
    for name, content in (files or {"solution.py": BUGGY}).items():
        written[f"environment/repo/{name}"] = content
    for name, content in written.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
