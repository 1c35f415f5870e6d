"""Trials as files in Harbor's trajectory format, a folder for each."""

from collections.abc import Sequence
from pathlib import Path

from harness.atif import to_atif
from harness.trajectory import encode
from tasks.journal import Journal, read_json, write_text
from tasks.trial_files import StoredTrial

UNKNOWN_VERSION = "unknown"
"""Of agents: they are prepared on each machine, and do not tell."""


def export_trials(
    journal: Journal, trials: Sequence[StoredTrial], folder: Path, *, prompt_ids: bool = False
) -> list[Path]:
    """Write the trials' ATIF documents below `folder`. Returns their folders.

    A trial without answers has none, nor has one whose conversation is not kept.
    """
    config = (read_json(journal.root / "config.json") or {}).get("config", {})
    model = config.get("model", {}).get("path")
    written = []
    for trial in trials:
        if not trial.has_trajectory:
            continue
        trajectory = trial.trajectory()
        if not any(segment["turns"] for segment in trajectory["segments"]):
            continue
        documents = to_atif(
            trajectory,
            agent_version=UNKNOWN_VERSION,
            model_name=model,
            reward=None if trial.verdict is None else trial.verdict.reward,
            prompt_ids=prompt_ids,
        )
        target = folder / trial.session_id
        for name, document in documents.items():
            write_text(target / name, encode(document))
        written.append(target)
    return written
