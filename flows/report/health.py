"""What the diagnosis says of a run, for its report: its state, the verdict on its first step, its signatures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.diagnosis.facts import RunFacts
from flows.diagnosis.signatures import find_signatures
from flows.diagnosis.state import state_of
from flows.diagnosis.status import first_step_of
from flows.diagnosis.text import Shown
from flows.report.run_data import RunData


@dataclass(frozen=True)
class Line:
    """A finding: its level, what it is about, what it says, and what else belongs to it, a line each."""

    level: str
    name: str
    text: str
    more: Sequence[str] = ()


@dataclass(frozen=True)
class Health:
    """`first_step` is None for a run whose first step was never judged."""

    state: str
    why: str
    first_step: Sequence[Line] | None
    signatures: Sequence[Line]


def read_health(run: RunData) -> Health:
    """As `testgrad status` finds it now."""
    facts, shown = RunFacts.read(run.root.parent.parent, run.name), Shown()
    state = state_of(facts)
    signs = [
        Line(
            str(sign.level),
            sign.name,
            shown(sign.claim),
            [
                *map(shown, sign.facts),
                *(f"{metric}: {_series(series)}" for metric, series in sign.evidence.items() if series),
                *(shown(f"likely {number}: {cause.text}") for number, cause in enumerate(sign.causes, 1)),
            ],
        )
        for sign in find_signatures(facts, state)
    ]
    verdict = first_step_of(facts)
    stage = f", {state.stage.text}" if state.stage is not None else ""
    return Health(
        f"{state.state}{stage}",
        shown.lines(state.why),
        None if verdict is None else [_line(entry, shown) for entry in _entries(verdict.get("findings"))],
        signs,
    )


def _series(series: Sequence[tuple[int, float]]) -> str:
    return ", ".join(f"{value:.4g} at step {step}" for step, value in series)


def _line(entry: Mapping[str, Any], shown: Shown) -> Line:
    value = f" is {entry.get('value')}" if entry.get("value") not in (None, "") else ""
    causes = [
        shown(f"likely {number}: {cause.get('cause')} ({cause.get('evidence')}); {cause.get('mend')}")
        for number, cause in enumerate(_entries(entry.get("causes")), 1)
    ]
    text = f"{entry.get('field')}{value}: {entry.get('why')}"
    return Line(str(entry.get("level")), str(entry.get("check")), shown(text), causes)


def _entries(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
