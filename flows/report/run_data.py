"""What a report knows of a run: plain values, small even for a run of weeks."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_MAX_NOTES, _MAX_NOTE_CHARS = 100, 500


@dataclass(frozen=True)
class GroupResult:
    """The attempts at one task in one step: `solved` of the `scored` ones; infrastructure failures are not scored."""

    task_id: str
    solved: int
    scored: int


@dataclass(frozen=True)
class StageTrials:
    """The trials of a step or an evaluation. `statuses` counts verdicts, those not graded as `not graded`.

    `seconds` are means over the trials by stage; `planned` is None where the journal does not say.
    """

    label: str
    step: int
    evaluation: bool
    outcomes: Counter[str]
    statuses: Counter[str]
    groups: Sequence[GroupResult]
    seconds: Mapping[str, float]
    planned: int | None = None

    @property
    def ended(self) -> int:
        return self.outcomes.total()


@dataclass(frozen=True)
class TrialRow:
    """A trial that deserves a look; `row` as in `tasks.trial_table`."""

    label: str
    seconds: float
    row: Mapping[str, Any]

    @property
    def session_id(self) -> str:
        return str(self.row["session_id"])


@dataclass(frozen=True)
class Evaluation:
    """A validation: mean with its 95 % interval by cluster, where its record has what these need.

    `clusters` are rewards by cluster, `pass_at` estimates by k.
    """

    step: int
    mean_reward: float | None
    mean: float | None
    low: float | None
    high: float | None
    scored: int | None
    launched: int | None
    pass_at: Mapping[int, float]
    left_out: Mapping[str, int]
    clusters: Mapping[str, Sequence[float]]


class Notes:
    """What is missing or damaged, as lines for people: as many as help, and how many more there were."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.more = 0

    def add(self, text: str) -> None:
        if len(self.lines) < _MAX_NOTES:
            self.lines.append(text if len(text) <= _MAX_NOTE_CHARS else text[: _MAX_NOTE_CHARS - 1] + "…")
        else:
            self.more += 1


@dataclass
class RunData:
    """Everything that a report shows. `metrics` have one entry for each of `steps`, NaN where it is not known.

    `slowest` and `tampered` hold the worst few; `tampered_total` counts all of them. `changed_at` is in seconds since
    1970.
    """

    name: str
    root: Path
    notes: Notes = field(default_factory=Notes)
    config: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    total_steps: int | None = None
    steps: Sequence[int] = ()
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    trials: Sequence[StageTrials] = ()
    evaluations: Sequence[Evaluation] = ()
    warnings: Sequence[str] = ()
    slowest: Sequence[TrialRow] = ()
    tampered: Sequence[TrialRow] = ()
    tampered_total: int = 0
    changed_at: float | None = None

    @property
    def training(self) -> list[StageTrials]:
        """The trials of training steps, in order."""
        return [stage for stage in self.trials if not stage.evaluation]

    @property
    def state(self) -> str:
        """How far the run is, from facts in the journal alone: it cannot tell a running process from a dead one."""
        done = len(self.steps)
        if self.total_steps is None:
            return f"{done} steps recorded"
        if self.steps and max(self.steps) >= self.total_steps:
            return f"finished: {done} of {self.total_steps} steps recorded"
        return f"unfinished: {done} of {self.total_steps} steps recorded"

    def last(self, metric: str) -> float | None:
        """The newest known value of a metric."""
        values = self.metrics.get(metric)
        known = values[np.isfinite(values)] if values is not None else np.empty(0)
        return float(known[-1]) if len(known) else None


def ranges(steps: Iterable[int]) -> str:
    """`1, 3–5` for 1, 3, 4, 5."""
    told: list[list[int]] = []
    for step in sorted(steps):
        if told and step == told[-1][1] + 1:
            told[-1][1] = step
        else:
            told.append([step, step])
    return ", ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in told)
