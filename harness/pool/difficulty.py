"""How hard tasks are for a policy: pass rates from trials, and what of a pool to keep.

A group that all or none of its trials solve has no spread and so no gradient. Which tasks carry one follows from trials
of the very policy that is to be trained, at its sampling temperature. A trial that died of its infrastructure says
nothing about the task: counted as a failure, it would make easy tasks look hard and broken ones look useful.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.pool.index import PoolError, TaskPointer

INFRA = "infra_error"
LABELS = ("unsolved", "hard", "medium", "easy", "solved")
"""Bands of the pass rate: 0; above 0 to 0.25; to below 0.75; from 0.75 to below 1; 1."""


@dataclass(frozen=True)
class TrialEnd:
    """How one trial of a task ended. `status` is its verdict's, None where it was never graded.

    Whatever the policy can cause counts as it was graded; an `infra_error`, of trial or verdict, does not count.
    """

    task_id: str
    outcome: str
    status: str | None
    reward: float | None


def read_trials(folder: Path) -> Iterator[TrialEnd]:
    """The sampled trials below a folder, such as a run's `trials/`: a trial.json each, and a verdict.json if graded.

    Greedy trials, at temperature 0, are left out: they are no sample of what the policy does.

    Raises:
        PoolError: there is no such folder, or a record in it is none of a trial.
    """
    if not folder.is_dir():
        raise PoolError(
            f"{folder}: no such folder; give the one with the trials, such as runs/PROJECT/EXPERIMENT/trials"
        )
    for file in sorted(folder.rglob("trial.json")):
        verdict = file.with_name("verdict.json")
        try:
            trial = json.loads(file.read_text(encoding="utf-8"))
            graded = json.loads(verdict.read_text(encoding="utf-8")) if verdict.is_file() else {}
            greedy = trial.get("sampling", {}).get("temperature") == 0
            end = TrialEnd(trial["task_id"], trial["outcome"], graded.get("status"), graded.get("reward"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PoolError(f"{file} is no record of a trial ({error!r}); leave out its folder") from error
        if not greedy:
            yield end


@dataclass(frozen=True)
class PassCount:
    """Trials of one task: those that count, those of them that passed, and those lost to infrastructure or ungraded."""

    trials: int = 0
    passes: int = 0
    infra: int = 0
    ungraded: int = 0

    @property
    def rate(self) -> float | None:
        """Share of the counted trials that passed; None if none counts."""
        return self.passes / self.trials if self.trials else None


def count_passes(trials: Iterable[TrialEnd]) -> dict[str, PassCount]:
    """Counts by task id. A trial passes with a reward of at least 1."""
    counts: dict[str, PassCount] = {}
    for trial in trials:
        count = counts.get(trial.task_id, PassCount())
        if INFRA in (trial.outcome, trial.status):
            count = dataclasses.replace(count, infra=count.infra + 1)
        elif trial.status is None or trial.reward is None:
            count = dataclasses.replace(count, ungraded=count.ungraded + 1)
        else:
            passed = trial.reward >= 1.0
            count = dataclasses.replace(count, trials=count.trials + 1, passes=count.passes + passed)
        counts[trial.task_id] = count
    return counts


_VALUES = r"\s*(?P<low>[\d.]+)\s*{}\s*(?P<high>[\d.]+)\s*"
_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], tuple[bool, bool]]], ...] = (
    (
        re.compile(rf"\s*(?P<first>[(\[]){_VALUES.format(',')}(?P<last>[)\]])\s*"),
        lambda match: (match["first"] == "(", match["last"] == ")"),
    ),
    (
        re.compile(_VALUES.format(r"(?P<first><=?)\s*(?:pass_)?rate\s*(?P<last><=?)")),
        lambda match: (match["first"] == "<", match["last"] == "<"),
    ),
    (re.compile(_VALUES.format(":")), lambda match: (False, False)),
)
"""How an interval may be written, and which of its ends are left out."""


@dataclass(frozen=True)
class Band:
    """An interval of pass rates; `open_low` and `open_high` leave out its ends."""

    low: float = 0.0
    high: float = 1.0
    open_low: bool = True
    open_high: bool = True

    @classmethod
    def parse(cls, text: str) -> "Band":
        """From `(0, 1)`, which leaves out both ends (`[0.25, 0.75]` none), `0 < rate <= 0.5`, or `0.1:0.9` with both.

        Raises:
            PoolError: it is no interval within 0 and 1.
        """
        for form, opens in _FORMS:
            if match := form.fullmatch(text):
                open_low, open_high = opens(match)
                low, high = _number(match["low"]), _number(match["high"])
                if 0 <= low <= high <= 1:
                    return cls(low, high, open_low, open_high)
        raise PoolError(
            f"band {text!r} is no interval of pass rates; write one such as '0 < rate < 1', '0.1:0.9' or '[0.25, 0.75]'"
        )

    def __str__(self) -> str:
        return f"{'(' if self.open_low else '['}{self.low:g}, {self.high:g}{')' if self.open_high else ']'}"

    def __contains__(self, rate: float) -> bool:
        above = rate > self.low if self.open_low else rate >= self.low
        below = rate < self.high if self.open_high else rate <= self.high
        return above and below


@dataclass(frozen=True)
class Selection:
    """Rows kept, with their rates, and why the others were not: `unmeasured` have too few trials that count."""

    kept: list[TaskPointer]
    outside: list[TaskPointer]
    unmeasured: list[TaskPointer]


def with_rates(rows: Sequence[TaskPointer], counts: Mapping[str, PassCount]) -> list[TaskPointer]:
    """The rows with `pass_rate`, `trials`, `infra_trials` and `band` in their extras, where trials were made."""
    return [_with_rate(row, counts[row.instance_id]) if row.instance_id in counts else row for row in rows]


def select(
    rows: Sequence[TaskPointer],
    counts: Mapping[str, PassCount],
    band: Band = Band(),
    min_trials: int = 1,
) -> Selection:
    """Keep the rows whose pass rate lies in `band`; a task with fewer than `min_trials` that count is unmeasured."""
    if min_trials < 1:
        raise PoolError(f"min_trials is {min_trials}; a rate needs at least one trial that counts")
    selection = Selection([], [], [])
    for row in with_rates(rows, counts):
        count = counts.get(row.instance_id, PassCount())
        if count.rate is None or count.trials < min_trials:
            selection.unmeasured.append(row)
        elif count.rate in band:
            selection.kept.append(row)
        else:
            selection.outside.append(row)
    return selection


def label(rate: float) -> str:
    """The name of a pass rate's band."""
    if rate <= 0:
        return "unsolved"
    if rate >= 1:
        return "solved"
    return "hard" if rate <= 0.25 else "medium" if rate < 0.75 else "easy"


def histogram(rates: Iterable[float], bins: int = 8) -> list[tuple[str, int]]:
    """(text of the interval, number of rates): exactly 0, then `bins` equal parts of what lies between, then exactly 1.

    The ends stand apart, since tasks there carry no signal. A part holds its upper end.
    """
    if bins < 1:
        raise PoolError(f"bins is {bins}; a histogram needs at least one")
    counts = [0] * (bins + 2)
    for rate in rates:
        if rate <= 0 or rate >= 1:
            counts[0 if rate <= 0 else -1] += 1
        else:
            place = next(i for i in range(bins) if rate <= (i + 1) / bins)
            counts[place + 1] += 1
    parts = [f"{i / bins:.3g}–{(i + 1) / bins:.3g}" for i in range(bins)]
    return list(zip(["0", *parts, "1"], counts, strict=True))


def _with_rate(row: TaskPointer, count: PassCount) -> TaskPointer:
    known: dict[str, Any] = {"trials": count.trials, "infra_trials": count.infra}
    if count.rate is not None:
        known |= {"pass_rate": count.rate, "band": label(count.rate)}
    return dataclasses.replace(row, extra=row.extra | known)


def _number(text: str) -> float:
    """The number that `text` is; one that lies in no interval if it is none."""
    try:
        return float(text)
    except ValueError:
        return -1.0
