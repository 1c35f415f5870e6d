"""What is going on right now, for whoever wants to watch; the journal, not this, says what has happened."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something a person may want to see: `kind` is `stage`, `trials`, `rollouts`, `step`, `eval` or `note`."""

    kind: str
    label: str
    text: str = ""
    done: int = 0
    total: int = 0
    data: dict[str, Any] = field(default_factory=dict)


_watchers: list[Callable[[Event], None]] = []


@contextmanager
def watching(watcher: Callable[[Event], None]) -> Iterator[None]:
    """Call `watcher` with every event inside the block."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def emit(event: Event) -> None:
    """Tell the watchers."""
    for watcher in list(_watchers):
        watcher(event)
