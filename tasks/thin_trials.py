"""Bounds what the trials of finished steps take on disk: conversations, tokens and patches of most of them are deleted.

How a trial ended and what it was worth stays, in trial.json, verdict.json and the step's trials.parquet: samplers,
reports and counts read these. What was trained on stays too, in the step's batch. Evaluations are never thinned, for
they can be graded again, nor is the first step, whose verdict is read from its conversations.
"""

from collections.abc import Collection, Sequence
from typing import Literal

from harness.verifier.verdict import Status
from tasks.journal import Journal, read_json, step_label, write_json
from tasks.tracing import TracingConfig, choose
from tasks.trial_files import StoredTrial, load_trial
from trainer.rollout import Outcome

Keep = Literal["all", "sampled", "failures"]

THINNED = "thinned.json"
BULK = ("trajectory.json", "rollout.parquet", "patch.json", "patch.diff")
_SOUND = (Status.PASSED, Status.FAILED)
_ORDER: tuple[Keep, ...] = ("all", "sampled", "failures")


def thin_trials(journal: Journal, keep: Keep, tracing: TracingConfig, *, before: int | None = None) -> int:
    """Thin the finished steps that have not been thinned so far as `keep` asks. Returns how many trials were thinned.

    A step that a crash left half thinned is gone through again, and so is one that was thinned less.

    Args:
        tracing: `sampled` keeps the trials that it traces, with the failures.
        before: Steps from this one on are left alone; a run so keeps its newest step whole.
    """
    thinned = 0
    if keep == "all":
        return thinned
    for step in journal.finished_steps():
        if step == 1 or (before is not None and step >= before):
            continue
        marker = journal.stage_dir(step_label(step)) / THINNED
        done = (read_json(marker) or {"keep": "all"})["keep"]
        if _ORDER.index(done) >= _ORDER.index(keep):
            continue
        trials = [load_trial(folder) for folder in journal.trials(step_label(step))]
        kept = kept_trials(trials, keep, tracing)
        found = sum(_thin(trial) for trial in trials if trial.session_id not in kept)
        write_json(marker, {"keep": keep, "kept": len(kept), "trials": len(trials)})
        thinned += found
    return thinned


def kept_trials(trials: Sequence[StoredTrial], keep: Keep, tracing: TracingConfig) -> Collection[str]:
    """Session ids of the trials that stay whole."""
    if keep == "all":
        return {trial.session_id for trial in trials}
    failures = {trial.session_id for trial in trials if is_failure(trial)}
    return failures if keep == "failures" else failures | {trial.session_id for trial in choose(trials, tracing)}


def is_failure(trial: StoredTrial) -> bool:
    """Whether a person may have to look at it: something broke, or the patch did what it must not.

    A patch that merely does not pass is no failure: it is what training is about.
    """
    if trial.outcome is Outcome.INFRA_ERROR or trial.record["error"] is not None:
        return True
    return trial.verdict is None or trial.verdict.status not in _SOUND


def _thin(trial: StoredTrial) -> bool:
    there = [trial.folder / name for name in BULK if (trial.folder / name).is_file()]
    for path in there:
        path.unlink()
    return bool(there)
