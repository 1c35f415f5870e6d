"""A trial's files in the journal."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.patch import Patch
from harness.trajectory import encode, trajectory_of
from harness.trial import TrialResult
from harness.verifier.verdict import Verdict
from tasks.journal import JournalError, read_json, write_json, write_table, write_text
from trainer.rollout import ROLLOUT_SCHEMA, Outcome, Rollout


@dataclass(frozen=True)
class StoredTrial:
    """A trial that has ended, as the journal tells of it. `verdict` is None until it is graded, or if it is not."""

    folder: Path
    record: dict[str, Any]
    verdict: Verdict | None

    @property
    def session_id(self) -> str:
        return str(self.record["session_id"])

    @property
    def group_id(self) -> str:
        return str(self.record["group_id"])

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.record["outcome"])

    @property
    def has_answers(self) -> bool:
        """Whether the policy came to speak. Behind an endpoint it may have, without a token that could be kept."""
        unknown = self.record.get("counters", {}).get("tokens_unknown")
        return bool(self.record["turns"] if unknown else self.record["trained_segments"])

    @property
    def was_judged(self) -> bool:
        """Whether its verdict says something of the policy: it spoke, or it was at its first answer still when its time
        was up, of which no token is left.
        """
        asked = bool(self.record.get("counters", {}).get("requests"))
        return self.has_answers or (asked and self.outcome is Outcome.AGENT_TIMEOUT)

    @property
    def has_trajectory(self) -> bool:
        """Whether the conversation is still there; `schedule.keep_trials` may have taken it away."""
        return (self.folder / "trajectory.json").is_file()

    def rollouts(self) -> list[Rollout]:
        """The token records of the segments that are trained; none if the policy sampled nothing."""
        path = self.folder / "rollout.parquet"
        return [Rollout.from_row(row) for row in pq.read_table(path).to_pylist()] if path.is_file() else []

    def trajectory(self) -> dict[str, Any]:
        """What was said and sampled, as `harness.trajectory` writes it.

        Raises:
            JournalError: trajectory.json is missing.
        """
        trajectory = read_json(self.folder / "trajectory.json")
        if trajectory is None:
            raise JournalError(
                f"{self.folder} has no trajectory.json: the run's schedule.keep_trials keeps no more of it than how it "
                "ended, or somebody has removed it"
            )
        return dict(trajectory)

    def patch(self) -> Patch:
        """What the trial changed."""
        return Patch.from_json((self.folder / "patch.json").read_text())


def store_trial(folder: Path, result: TrialResult) -> None:
    """Write a trial that has ended; trial.json, which makes it count, comes last."""
    write_text(folder / "trajectory.json", encode(trajectory_of(result)))
    if result.rollouts:
        rows = [rollout.to_row() for rollout in result.rollouts]
        write_table(folder / "rollout.parquet", pa.Table.from_pylist(rows, schema=ROLLOUT_SCHEMA))
    if result.patch is not None:
        write_text(folder / "patch.json", result.patch.to_json())
        write_text(folder / "patch.diff", result.patch.text)
    write_json(folder / "trial.json", result.to_json())


def store_verdict(folder: Path, verdict: Verdict) -> None:
    """Write a trial's verdict."""
    write_text(folder / "verdict.json", verdict.to_json())


def load_trial(folder: Path) -> StoredTrial:
    """The trial in `folder`.

    Raises:
        JournalError: it has not ended.
    """
    record = read_json(folder / "trial.json")
    if record is None:
        raise JournalError(f"{folder} has no trial.json: the trial has not ended")
    stored = read_json(folder / "verdict.json")
    return StoredTrial(folder, record, Verdict.from_json(json.dumps(stored)) if stored is not None else None)
