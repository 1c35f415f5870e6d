"""A trial's files in the journal."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.patch import Patch
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

    def rollout(self) -> Rollout | None:
        """The token record, None if the policy sampled nothing."""
        path = self.folder / "rollout.parquet"
        return Rollout.from_row(pq.read_table(path).to_pylist()[0]) if path.is_file() else None

    def patch(self) -> Patch:
        """What the trial changed."""
        return Patch.from_json((self.folder / "patch.json").read_text())


def store_trial(folder: Path, result: TrialResult) -> None:
    """Write a trial that has ended; trial.json, which makes it count, comes last."""
    write_json(folder / "trajectory.json", result.transcript.to_json())
    if result.rollout is not None:
        write_table(folder / "rollout.parquet", pa.Table.from_pylist([result.rollout.to_row()], schema=ROLLOUT_SCHEMA))
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
