"""A server whose jobs share it: how fast each is served changes as others come and go."""

import heapq
import math
from collections.abc import Callable

import simpy


class SharedServer:
    """Processor sharing. `rate(n)` is how much work a second each of n jobs gets.

    All jobs are served alike, so one clock of work done for each is enough: a job ends when it has advanced by the
    job's amount.
    """

    def __init__(self, env: simpy.Environment, rate: Callable[[int], float]) -> None:
        self.busy_seconds = 0.0
        """Time with at least one job, that of a pause left out."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when the server becomes busy or idle."""
        self._env, self._rate = env, rate
        self._slowdown, self._paused = 1.0, False
        self._clock, self._at = 0.0, env.now
        self._jobs: list[tuple[float, int, simpy.Event]] = []
        self._arrivals = 0
        self._timers = 0

    @property
    def busy(self) -> bool:
        """Whether it is at work."""
        return bool(self._jobs) and not self._paused

    def work(self, amount: float) -> simpy.Event:
        """An event that succeeds once `amount` has been worked off, or fails with what `fail_all` was given."""
        self._advance()
        done = self._env.event()
        self._arrivals += 1
        heapq.heappush(self._jobs, (self._clock + amount, self._arrivals, done))
        self._changed(len(self._jobs) == 1)
        return done

    def slow_down(self, factor: float) -> None:
        """Serve everybody `factor` times more slowly from now on."""
        self._advance()
        self._slowdown = factor
        self._changed(False)

    def pause(self, paused: bool) -> None:
        """Stop, with all jobs kept where they are, or go on."""
        self._advance()
        self._paused = paused
        self._changed(bool(self._jobs))

    def fail_all(self, error: Exception) -> None:
        """End all jobs with `error`; what was worked off is lost."""
        self._advance()
        jobs, self._jobs = self._jobs, []
        for _, _, done in jobs:
            done.fail(error)
        self._changed(bool(jobs))

    def settle(self) -> None:
        """Bring `busy_seconds` up to now."""
        self._advance()

    def _speed(self) -> float:
        return self._rate(len(self._jobs)) / self._slowdown if self.busy else 0.0

    def _advance(self) -> None:
        elapsed, self._at = self._env.now - self._at, self._env.now
        if self.busy:
            self.busy_seconds += elapsed
        self._clock += elapsed * self._speed()

    def _changed(self, busy_or_idle: bool) -> None:
        self._timers += 1
        speed = self._speed()
        if self._jobs and speed:
            # a callback, since a process for each change would take most of a simulation's time
            timer = self._env.timeout(max((self._jobs[0][0] - self._clock) / speed, 0.0), self._timers)
            timer.callbacks.append(self._finish_first)
        if busy_or_idle:
            self.on_change()

    def _finish_first(self, timer: simpy.Event) -> None:
        if timer.value != self._timers:
            return  # jobs came or went, and another timer was set
        self._advance()
        # the clock may be short of the mark by rounding
        self._clock = max(self._clock, self._jobs[0][0])
        while self._jobs and (self._jobs[0][0] <= self._clock or math.isclose(self._jobs[0][0], self._clock)):
            heapq.heappop(self._jobs)[2].succeed()
        self._changed(not self._jobs)
