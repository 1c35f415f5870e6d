"""The checkpoints of runs, as commands name them; and finished runs without what only training needs."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tasks.journal import Journal, read_json
from tasks.lease import lease, living_holder
from trainer.learner.checkpoint import MARKER, Checkpoint, CheckpointError, list_checkpoints, remove, remove_garbage
from trainer.learner.export import REPORT, export_checkpoint, read_report


class RunError(ValueError):
    """No such run, or none that this can be done to."""


def find_run(root: Path, run: str) -> Journal:
    """The journal of `project/experiment` under `root`, or of a run's folder.

    Raises:
        RunError: there is none.
    """
    for folder in (root / run, Path(run)):
        if (folder / "config.json").is_file():
            return Journal(folder.resolve())
    known = sorted(path.parent.relative_to(root).as_posix() for path in root.glob("*/*/config.json"))
    text = f"there are {', '.join(known[:8])}" if known else "there is none"
    raise RunError(f"run: {run!r} is no run under {root}; {text}")


def find_checkpoint(root: Path, run: str, step: int | None) -> Path:
    """A checkpoint by its own path, or that of a run after `step`, the newest if None.

    Raises:
        RunError: no such run.
        CheckpointError: it has no such checkpoint, or has been pruned.
    """
    if (Path(run) / MARKER).is_file():
        return Path(run).resolve()
    journal = find_run(root, run)
    checkpoints = {checkpoint.step: checkpoint.path for checkpoint in list_checkpoints(journal.checkpoints)}
    chosen = max(checkpoints, default=None) if step is None else step
    if chosen in checkpoints:
        return checkpoints[chosen]
    pruned = exported_steps(journal)
    if pruned and (step is None or step in pruned):
        found = exports(journal) / f"global_step_{max(pruned) if step is None else step}"
        raise CheckpointError(f"run: {run} has been pruned; its weights are exported already: {found}")
    known = ", ".join(map(str, sorted(checkpoints))) or "no step"
    raise CheckpointError(f"--step: {run} has no checkpoint after step {step}; it has those after {known}")


def exports(journal: Journal) -> Path:
    """Where the weights of a pruned run are."""
    return journal.root / "exports"


def exported_steps(journal: Journal) -> list[int]:
    """The steps after which a pruned run has its weights."""
    return sorted(int(path.parent.name.rpartition("_")[2]) for path in exports(journal).glob(f"global_step_*/{REPORT}"))


@dataclass
class Pruned:
    """What was done to a run, or would be. Bytes are of checkpoints and of exported weights."""

    run: str
    steps: list[int] = field(default_factory=list)
    freed_bytes: int = 0
    exported_bytes: int = 0
    refused: str | None = None


def prune_run(
    root: Path, run: str, *, dry_run: bool, progress: Callable[[int, int, int], None] = lambda step, done, total: None
) -> Pruned:
    """Replace the checkpoints of a finished run by their weights in Hugging Face format, verified, in `exports/`.

    A checkpoint is deleted once its export is whole and computes what the learner did. The journal stays. Asked again
    after it was stopped, it goes on. What is refused is told in the result, and nothing is touched.

    Args:
        progress: Called with the step, and with the bytes exported and to be exported.

    Raises:
        CheckpointError, ExportError: an export failed; that checkpoint is as it was.
    """
    try:
        journal = find_run(root, run)
    except RunError as error:
        return Pruned(run, refused=str(error))
    refused = _why_not(journal)
    if refused is not None:
        return Pruned(run, refused=refused)
    if dry_run:
        return _plan(journal, run)
    with lease(journal.root, "prune"):
        remove_garbage(journal.checkpoints)
        done = Pruned(run)
        for checkpoint in list_checkpoints(journal.checkpoints):
            folder = exports(journal) / f"global_step_{checkpoint.step}"
            _export(checkpoint, folder, partial(progress, checkpoint.step))
            done.steps.append(checkpoint.step)
            done.freed_bytes += checkpoint.bytes
            done.exported_bytes += sum(path.stat().st_size for path in folder.glob("*.safetensors"))
            remove(checkpoint.path)
    return done


def _why_not(journal: Journal) -> str | None:
    holder = living_holder(journal.root)
    if holder is not None:
        return f"it is in use by {holder}; wait for its end"
    stored: dict[str, Any] = read_json(journal.root / "config.json") or {}
    schedule = stored.get("config", {}).get("schedule")
    if schedule is None:
        return "it is no training run"
    total, finished = schedule["total_steps"], journal.finished_steps()
    if total not in finished:
        return (
            f"it is not finished: {len(finished)} of {total} steps are done, and its checkpoints are what it goes on "
            f"from; finish it, or end it with schedule.total_steps={max(finished, default=1)}"
        )
    newest = max((checkpoint.step for checkpoint in list_checkpoints(journal.checkpoints)), default=None)
    if newest is not None and newest < total:
        return f"its last step {total} has no checkpoint, only step {newest} has: train it once more to make it"
    return None


def _plan(journal: Journal, run: str) -> Pruned:
    checkpoints = list_checkpoints(journal.checkpoints)
    weights = sum(
        path.stat().st_size for checkpoint in checkpoints for path in Path(checkpoint.model_path).glob("*.safetensors")
    )
    return Pruned(run, [c.step for c in checkpoints], sum(c.bytes for c in checkpoints), weights)


def _export(checkpoint: Checkpoint, folder: Path, progress: Callable[[int, int], None]) -> None:
    report = read_report(folder)
    if report is not None and report.fingerprint == checkpoint.fingerprint:
        return  # made, and checked, before this was stopped
    shutil.rmtree(folder, ignore_errors=True)
    export_checkpoint(checkpoint.path, folder, progress)


def has_weights(journal: Journal, step: int) -> bool:
    """Whether a run has the weights after `step`: in a checkpoint, or exported when it was pruned."""
    return (journal.checkpoints / f"global_step_{step}" / MARKER).is_file() or step in exported_steps(journal)
