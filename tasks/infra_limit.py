"""What a step may lose to infrastructure before it stops: training on the rest would hide what is broken.

A stage that stops so leaves `infra_stop.json` in the step's folder. When the run goes on, what was lost is set aside
and made again: the file, not the share that is configured then, says that there is something to make again.
"""

import os
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from harness.verifier.verdict import Status
from tasks.draw import Group
from tasks.infra_causes import infrastructure_causes
from tasks.journal import read_json, write_json
from tasks.run import RunRef
from tasks.trial_files import StoredTrial, load_trial
from trainer.rollout import Outcome

STOPPED = "infra_stop.json"
LOST = "trial.lost.json"
"""What trial.json of a trial that is made again is called from then on: it has never ended."""

Lost = Literal["trials", "gradings"]


class TooManyLost(ValueError):
    """A step lost more to infrastructure than the run accepts; the message has the counts, causes and mends."""


class InfraLimit:
    """Counts what a stage of a step loses to infrastructure.

    Args:
        groups: Those of the step, or of its refill.
        share: Part of their trials that may be lost; None for all.
        what: What is lost.
    """

    def __init__(
        self, run: RunRef, label: str, groups: Sequence[Group], share: float | None, what: Lost = "trials"
    ) -> None:
        self._run, self._label, self._share, self._what = run, label, share, what
        self._groups = sorted(group.group_id for group in groups)
        self._total = sum(group.attempts for group in groups)
        self.errors: Counter[str] = Counter()

    def lose(self, error: str | None) -> None:
        """Count one.

        Raises:
            TooManyLost: it is one too many.
        """
        self.errors[error or ""] += 1
        if self._share is None or self.errors.total() <= self._share * self._total:
            return
        causes = infrastructure_causes(self.errors)
        stop = {
            "what": self._what,
            "groups": self._groups,
            "lost": self.errors.total(),
            "total": self._total,
            "causes": [cause.to_json() for cause in causes],
        }
        write_json(self._run.journal.stage_dir(self._label) / STOPPED, stop)
        raise TooManyLost(
            f"{self._label}: {self.errors.total()} of {self._total} {self._what} were lost to infrastructure, more "
            f"than rollout.max_infra_share of {self._share:g} accepts. Likely causes: "
            + "; ".join(f"{n}. {cause.text}" for n, cause in enumerate(causes, 1))
            + ". Mend them, and start the run again with the same names: only what was lost is made again"
        )


def make_lost_again(run: RunRef, label: str) -> int:
    """If a stage of the step stopped over what it lost, set that aside, so that it is made again. Returns how much.

    To be called while no stage of the step is at work: they count what there is.
    """
    marker = run.journal.stage_dir(label) / STOPPED
    stop = read_json(marker)
    if stop is None:
        return 0
    # of the stage that stopped, and of its groups alone: what has ended is not counted again
    trials = [trial for trial in map(load_trial, run.journal.trials(label)) if trial.group_id in set(stop["groups"])]
    lost = [trial for trial in trials if _set_aside(trial, stop["what"])]
    marker.unlink()
    return len(lost)


def _set_aside(trial: StoredTrial, what: Lost) -> bool:
    if what == "trials" and trial.outcome is Outcome.INFRA_ERROR:
        os.replace(trial.folder / "trial.json", trial.folder / LOST)
        return True
    if what == "gradings" and trial.verdict is not None and trial.verdict.status is Status.INFRA_ERROR:
        (trial.folder / "verdict.json").unlink()
        return True
    return False
