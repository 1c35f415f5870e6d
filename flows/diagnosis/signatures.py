"""Signatures of runs that are ill, by name; each is claimed only with the values that show it.

A signature is a function of the run's facts. It returns a `Signature` with its evidence, or None: where values are
missing, too few or not finite, nothing is claimed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flows.diagnosis.causes import LikelyCause
from flows.diagnosis.facts import RunFacts
from flows.diagnosis.state import RunState
from flows.preflight.findings import Level

Series = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Signature:
    """A claim about a run. `evidence` are values by step under the names of metrics; `causes` the likeliest first."""

    name: str
    level: Level
    claim: str
    evidence: Mapping[str, Series]
    causes: Sequence[LikelyCause]
    facts: Sequence[str] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "level": str(self.level),
            "claim": self.claim,
            "evidence": {metric: [[step, value] for step, value in series] for metric, series in self.evidence.items()},
            "facts": list(self.facts),
            "causes": [cause.to_json() for cause in self.causes],
        }


Function = Callable[[RunFacts, RunState], Signature | None]

SIGNATURES: dict[str, Function] = {}
"""In the order in which they are told: what makes a run worthless comes first."""


def signature(name: str) -> Callable[[Function], Function]:
    """Function decorator: make a signature known as `name`.

    Raises:
        ValueError: the name is taken.
    """

    def enter(function: Function) -> Function:
        if name in SIGNATURES:
            raise ValueError(f"signature {name!r} is registered already, by {SIGNATURES[name].__module__}")
        SIGNATURES[name] = function
        return function

    return enter


def find_signatures(facts: RunFacts, state: RunState) -> list[Signature]:
    """All signatures that the run shows; what breaks in looking for one is noted, and claims nothing."""
    from flows.diagnosis import signs  # noqa: F401  (registers them)

    found = []
    for name, function in SIGNATURES.items():
        try:
            result = function(facts, state)
        except Exception as error:
            facts.notes.append(f"the signature {name} could not be looked for ({type(error).__name__}: {error})")
            continue
        if result is not None:
            found.append(result)
    return found
