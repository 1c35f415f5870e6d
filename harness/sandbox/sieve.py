"""What of a workspace that was walked somewhere else, by a keeper, goes into the tree that the host sees."""

from collections.abc import Callable, Mapping
from typing import Any

from harness.sandbox.tree import Tree, TreeLimits


class Sieve:
    """Takes the files of a walk in order, and keeps those that `keep(path, content)` accepts, within `limits`."""

    def __init__(self, limits: TreeLimits, keep: Callable[[str, bytes], bool]) -> None:
        self._limits = limits
        self._keep = keep
        self._files: dict[str, bytes] = {}
        self._rejected: list[tuple[str, str]] = []
        self._bytes = 0

    def add(self, path: str, data: bytes) -> None:
        if not self._keep(path, data):
            return
        if self._bytes + len(data) > self._limits.max_kept_bytes:
            self.leave_out(path)
            return
        self._bytes += len(data)
        self._files[path] = data

    def leave_out(self, path: str) -> None:
        """Note a file that there is no room for."""
        self._rejected.append((path, f"changes of more than {self._limits.max_kept_bytes} bytes"))

    def tree(self, told: Mapping[str, Any]) -> Tree:
        """The whole, by what the walk told at its end."""
        rejected = [(str(path), str(reason)) for path, reason in told["rejected"]]
        links, overflow = dict(told["links"]), str(told["overflow"])
        return Tree(self._files, set(told["seen"]), links, rejected + self._rejected, overflow)
