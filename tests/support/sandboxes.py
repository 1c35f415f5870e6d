"""Sandboxes of every backend, for tests of what they have in common."""

from collections.abc import Callable
from pathlib import Path

from harness.sandbox import Sandbox

Make = Callable[..., Sandbox]
"""Makes a sandbox, not started, of the backend under test; takes the fields of SandboxConfig."""


def processes_with(mark: str) -> list[int]:
    """Host processes with `mark` on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line:
                found.append(int(entry.name))
    return found
