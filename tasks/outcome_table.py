"""How all trials of an evaluation ended: solved, failed by the policy, or spoiled by infrastructure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.verifier.verdict import Status
from tasks.trial_files import StoredTrial
from trainer.rollout import Outcome

INFRASTRUCTURE = {
    Outcome.INFRA_ERROR: "the sandbox or the serving side broke",
    "verifier_infra_error": "the grading broke",
    "nothing_sampled": "the policy was never asked",
    "not_graded": "the grading is missing",
    "not_ended": "the trial is missing",
}
"""Endings that say nothing about the policy."""


def outcome_table(trials: Sequence[StoredTrial], launched: int) -> dict[str, Any]:
    """Counts that add up to `launched`.

    `solved` by the trial's outcome; `policy` by verdict, then by outcome; `infrastructure` by what spoiled the trial.
    """
    solved: Counter[str] = Counter()
    policy: dict[str, Counter[str]] = {}
    spoiled: Counter[str] = Counter()
    for trial in trials:
        reason = _spoiled(trial)
        if reason is not None:
            spoiled[reason] += 1
        elif trial.verdict is not None and trial.verdict.status is Status.PASSED:
            solved[str(trial.outcome)] += 1
        elif trial.verdict is not None:
            policy.setdefault(str(trial.verdict.status), Counter())[str(trial.outcome)] += 1
    if missing := launched - len(trials):
        spoiled["not_ended"] += missing
    return {
        "solved": dict(solved),
        "policy": {status: dict(counts) for status, counts in policy.items()},
        "infrastructure": dict(spoiled),
    }


def _spoiled(trial: StoredTrial) -> str | None:
    """What keeps a trial from being scored; the same trials as `filter_trials` leaves out of an evaluation."""
    if trial.outcome is Outcome.INFRA_ERROR:
        return str(Outcome.INFRA_ERROR)
    if trial.verdict is None:
        return "not_graded"
    if trial.verdict.status is Status.INFRA_ERROR:
        return "verifier_infra_error"
    return None if trial.was_judged else "nothing_sampled"
