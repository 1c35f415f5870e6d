"""All that `testgrad status` says of a run, as plain values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.configuration.redaction import Redactor
from flows.diagnosis.facts import RunFacts, known_runs
from flows.diagnosis.first_step import FIRST_STEP
from flows.diagnosis.signatures import Signature, find_signatures
from flows.diagnosis.state import RunState, state_of
from flows.preflight.findings import Level
from tasks.journal import step_label
from trainer.fidelity.judge import PEARSON

SHOWN = {
    "score": "critic/score/mean",
    "groups with signal": "batch/groups_with_signal",
    "groups": "batch/groups",
    "turns": "num_turns/mean",
    "tokens sampled": "response_length/mean",
    "pearson": PEARSON,
    "entropy": "actor/entropy",
    "gradient norm": "actor/grad_norm",
    "learning rate": "actor/lr",
    "trials left out": "trajectory_filter/invalid_ratio",
    "step seconds": "timing_s/step",
}
"""Numbers of a step that are shown, by the name that people read."""


class StatusError(ValueError):
    """There is no such run."""


@dataclass(frozen=True)
class Status:
    """A run's facts, its state, and the signatures that it shows."""

    facts: RunFacts
    state: RunState
    signatures: list[Signature]

    @property
    def ill(self) -> bool:
        """Whether something must be mended: a signature that makes the run worthless, or one that has ended it."""
        return any(found.level is Level.FATAL for found in self.signatures)

    @property
    def first_step(self) -> dict[str, Any] | None:
        """The verdict on step 1, as it was told."""
        return first_step_of(self.facts)

    @property
    def last(self) -> dict[str, float]:
        """Numbers of the newest step by name; those that are not known are left out."""
        values = {name: self.facts.last(metric) for name, metric in SHOWN.items()}
        return {name: value for name, value in values.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        state, facts = self.state, self.facts
        process = facts.process
        shown: dict[str, Any] = Redactor().value(
            {
                "run": facts.name,
                "journal": str(facts.journal.root),
                "state": str(state.state),
                "why": state.why,
                "since": moment(state.since),
                "pids": state.pids,
                "host": process.host if process is not None else None,
                "work": process.work if process is not None else None,
                "step": facts.newest,
                "total_steps": facts.total_steps,
                "stage": _stage(state),
                "changed_at": moment(facts.changed_at),
                "eta_seconds": round(state.eta_seconds, 1) if state.eta_seconds is not None else None,
                "last": self.last,
                "first_step": self.first_step,
                "signatures": [found.to_json() for found in self.signatures],
                "ill": self.ill,
                "notes": facts.notes,
            }
        )
        return shown


def first_step_of(facts: RunFacts) -> dict[str, Any] | None:
    """What first_step.json says, None if step 1 was never judged."""
    return facts.read_json(facts.journal.stage_dir(step_label(1)) / FIRST_STEP)


def status_of(root: Path, name: str) -> Status:
    """The status of one run.

    Raises:
        StatusError: there is no such run.
    """
    name = name.strip("/")
    known = known_runs(root)
    if name not in known:
        hint = f"; there are {', '.join(known[:10])}" if known else "; there is none in it yet"
        raise StatusError(f"no run {name!r} in {root}{hint}; name it as project/experiment, and its place by --root")
    return _status(root, name)


def all_statuses(root: Path) -> list[Status]:
    """The status of every run in `root`, the newest first."""
    found = [_status(root, name) for name in known_runs(root)]
    return sorted(found, key=lambda status: -(status.facts.changed_at or 0.0))


def _status(root: Path, name: str) -> Status:
    facts = RunFacts.read(root, name)
    state = state_of(facts)
    return Status(facts, state, find_signatures(facts, state))


def moment(seconds: float | None) -> str | None:
    """A time as text, in UTC."""
    if seconds is None or not math.isfinite(seconds):
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _stage(state: RunState) -> Mapping[str, Any] | None:
    if state.stage is None:
        return None
    stage = state.stage
    return {
        "label": stage.label,
        "name": stage.name,
        "trials_ended": stage.done,
        "trials_graded": stage.graded,
        "trials": stage.total,
        "began_at": moment(stage.began_at),
    }
