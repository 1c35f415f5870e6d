"""A file that remembers answers, one a line, through any kill."""

import json
from pathlib import Path
from typing import Any


class Lines:
    """A file of JSON lines, one value by key, appended to. A line that a kill cut short is none."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.values: dict[str, Any] = {}
        data = path.read_bytes() if path.is_file() else b""
        for line in data.splitlines(keepends=True):
            try:
                key, value = json.loads(line)
            except (ValueError, TypeError):
                continue
            if line.endswith(b"\n"):
                self.values[key] = value
        self._stream = path.open("ab")
        if data and not data.endswith(b"\n"):
            self._stream.write(b"\n")

    def put(self, key: str, value: Any) -> None:
        """Add or replace a value."""
        self.values[key] = value
        self._stream.write(json.dumps([key, value]).encode() + b"\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()
