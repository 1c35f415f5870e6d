"""The run's directory: what has durably happened, in files that are complete or absent.

    config.json lease.json end.json resolved configuration, versions; who works on the run now; how it ended last
    replicas.json                   how many replicas somebody has asked for, in the place of the configuration's
    steps/step_000012/              groups.parquet groups_refill_1.parquet rewards.json batch.parquet scores.parquet
                                    advantages.json update.json sync.json fidelity.json trials.parquet record.json
                                    first_step.json (the first step only)
    draws/draw_000012/              groups.parquet; sampled ahead, and taken as a step's taken.json says
    evals/step_000010/              groups.parquet snapshots.json trials.parquet record.json
    trials/step_000012/<session>/   trial.json rollout.parquet trajectory.json patch.json patch.diff verdict.json
    checkpoints/global_step_10/     learner shards, a marker written last
    exports/global_step_10/         of a run that was pruned: its weights in Hugging Face format
    logs/<exp>.log  logs/<exp>_vllm.log

A writer writes to a temporary name, syncs it to disk and renames it. Of a trial's files trial.json is written last: a
directory without it never happened.
"""

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ASKED = "asked.json"
"""In the folder of an evaluation or a collection by itself: all that its trials depend on; a run has none."""

_STEP = re.compile(r"step_(\d{6})")


class JournalError(RuntimeError):
    """The journal contradicts itself, or lacks what must be there."""


class Journal:
    """Paths and durable files of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def stage_dir(self, label: str) -> Path:
        """Where the stages of a step (`step_000012`), a draw ahead (`draw_000012`) or an evaluation
        (`eval_step_000012`) leave their files."""
        if label.startswith("eval_"):
            return self.root / "evals" / label.removeprefix("eval_")
        if label.startswith("draw_"):
            return self.root / "draws" / label
        return self.root / "steps" / label

    def trials_dir(self, label: str) -> Path:
        """Where the trials of a step or an evaluation are."""
        return self.root / "trials" / label

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def stage(self, label: str, name: str) -> dict[str, Any] | None:
        """The JSON file that a stage left, None if it is not done."""
        return read_json(self.stage_dir(label) / name)

    def finished_steps(self, marker: str = "record.json") -> list[int]:
        """Steps whose `marker` is there, in order."""
        folder = self.root / "steps"
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        matches = [_STEP.fullmatch(name) for name in names]
        return [int(match.group(1)) for match in matches if match and (folder / match.group() / marker).is_file()]

    def trials(self, label: str) -> list[Path]:
        """Directories of the trials that have ended, by name."""
        folder = self.trials_dir(label)
        return sorted(path.parent for path in folder.glob("*/trial.json")) if folder.is_dir() else []


def step_label(step: int) -> str:
    """`step_000012`"""
    return f"step_{step:06d}"


def eval_label(step: int) -> str:
    """`eval_step_000012`, the evaluation of the weights after step 12."""
    return f"eval_{step_label(step)}"


def write_text(path: Path, text: str) -> None:
    """Write a file that is complete or absent, also after a power cut."""
    with _published(path) as partial, open(partial, "w", encoding="utf-8") as file:
        file.write(text)


def write_json(path: Path, value: Any) -> None:
    """`write_text` of JSON."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True))


def read_json(path: Path) -> Any | None:
    """The JSON at `path`, None if there is no such file.

    Raises:
        JournalError: the file is not JSON; our writers cannot leave it so.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise JournalError(f"{path} is damaged ({error}); remove it to have it made again") from error


def write_table(path: Path, table: pa.Table) -> None:
    """Write a parquet file that is complete or absent."""
    with _published(path) as partial:
        pq.write_table(table, partial)


@contextmanager
def _published(path: Path) -> Iterator[Path]:
    """A temporary name for what becomes `path` at the end of the block; of a write that fails nothing stays.

    On a full disk such rests would take the room that the next try needs. The name is nobody else's: two threads may
    write the same file, and one of them has it.

    Raises:
        OSError: it cannot be written; names the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        yield partial
        _sync(partial)
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
