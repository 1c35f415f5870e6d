"""Checks by name, filled by a decorator; each is a generator of findings over the facts of a run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding

Function = Callable[[Facts], Iterable[Finding]]


class Cost(IntEnum):
    """What a check may do. A run makes the cheap ones before it trains; `testgrad check` makes them all."""

    CHEAP = 0
    """Reads the configuration, local files, and what the system says of itself."""
    PROBE = 1
    """Asks servers: an engine, a cluster, a tracking server."""
    TRIAL = 2
    """Runs a task."""


@dataclass(frozen=True)
class Check:
    """A registered check; `about` is the first line of its docstring."""

    name: str
    cost: Cost
    function: Function

    @property
    def about(self) -> str:
        return (self.function.__doc__ or "").strip().partition("\n")[0]


CHECKS: dict[str, Check] = {}
"""In the order in which they are made and told."""


def check(name: str, cost: Cost = Cost.CHEAP) -> Callable[[Function], Function]:
    """Function decorator: make a check known as `name`.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: Function) -> Function:
        if name in CHECKS:
            raise ValueError(f"check {name!r} is registered already, by {CHECKS[name].function.__module__}")
        CHECKS[name] = Check(name, cost, function)
        return function

    return register
