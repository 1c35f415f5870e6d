"""Which replicas are so slow, beside the others, that they get no new sessions."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from statistics import median

TIMES_SLOWER = 3.0
"""How many times longer than the median of the others a token must take."""
ANSWERS = 16
"""Answers that a replica is judged by, the newest."""
REST_SECONDS = 120.0
"""After so long without an answer, what was observed says nothing any more: a replica gets sessions on trial."""


class Speeds:
    """Seconds a token of each replica, as its answers show them: queueing in the engine included."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[Hashable, deque[float]] = {}
        self._newest: dict[Hashable, float] = {}

    def observe(self, replica: Hashable, tokens: int, seconds: float) -> None:
        """A replica took so long for an answer of so many tokens."""
        if tokens:
            self._seconds.setdefault(replica, deque(maxlen=ANSWERS)).append(seconds / tokens)
            self._newest[replica] = self._clock()

    def forget(self, replica: Hashable) -> None:
        """Another one has taken its place."""
        self._seconds.pop(replica, None)
        self._newest.pop(replica, None)

    def slow(self, replicas: Iterable[Hashable]) -> set[Hashable]:
        """Those of `replicas` that are much slower than the others; never all of them."""
        now = self._clock()
        known = {
            replica: median(self._seconds[replica])
            for replica in replicas
            if len(self._seconds.get(replica, ())) == ANSWERS and now - self._newest[replica] < REST_SECONDS
        }
        return {
            replica
            for replica, seconds in known.items()
            if len(known) > 1
            and seconds > TIMES_SLOWER * median(other for name, other in known.items() if name != replica)
        }
