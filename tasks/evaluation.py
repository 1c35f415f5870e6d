"""What the trials of an evaluation say about the policy."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.assemble_batch import filter_trials
from tasks.draw import Group
from tasks.outcome_table import outcome_table
from tasks.statistics.intervals import Interval, difference_interval, mean_interval
from tasks.statistics.pass_rates import TaskResult, by_part, pass_at_k, rates
from tasks.trial_files import StoredTrial

__all__ = [
    "PARTS",
    "Interval",
    "difference_interval",
    "mean_interval",
    "pass_at_k",
    "stored_results",
    "summarise",
    "task_results",
]

PARTS = ("repository", "difficulty")


def summarise(trials: Sequence[StoredTrial], groups: Sequence[Group]) -> dict[str, Any]:
    """Mean reward, pass@k and coverage, in all and by part; rewards by cluster and task, for comparing evaluations.

    Trials that infrastructure spoiled are left out and counted, never taken for failures of the policy.
    """
    scored, reasons = filter_trials(trials, needs_tokens=False)
    clusters: dict[str, list[float]] = defaultdict(list)
    cluster_of = {group.group_id: group.cluster for group in groups}
    for item in scored:
        clusters[cluster_of[item.group_id]].append(item.reward)
    launched = sum(group.attempts for group in groups)
    values = [item.reward for item in scored]
    results = task_results(trials, groups)
    pass_at = {k: rate.to_json() for k, rate in rates(results).items()}
    return {
        "mean_reward": sum(values) / len(values) if values else float("nan"),
        "tasks": len(groups),
        "scored": len(scored),
        "launched": launched,
        "coverage": len(scored) / launched if launched else 0.0,
        "left_out": dict(reasons),
        "mean_response_length": float(np.mean([item.trial.record["response_length"] for item in scored]))
        if scored
        else 0.0,
        "clusters": {name: rewards for name, rewards in sorted(clusters.items())},
        "pass_at": {str(k): rate for k, rate in pass_at.items()},
        "parts": {name: _part(results, name) for name in PARTS},
        "outcomes": outcome_table(trials, launched),
        "results": {task: result.to_json() for task, result in results.items()},
    } | {f"pass_at_{k}": rate["value"] for k, rate in pass_at.items()}


def task_results(trials: Sequence[StoredTrial], groups: Sequence[Group]) -> dict[str, TaskResult]:
    """The attempts at each task, in the order in which they began. Which comes first so says nothing of how it ended.

    One that was tried again because infrastructure failed began when its first try did.
    """
    scored, _ = filter_trials(trials, needs_tokens=False)
    rewards = {item.trial.session_id: item.reward for item in scored}
    attempts: dict[str, list[StoredTrial]] = defaultdict(list)
    for trial in trials:
        attempts[trial.group_id].append(trial)
    return {
        group.task_id: TaskResult(
            group.cluster,
            [rewards.get(trial.session_id) for trial in sorted(attempts[group.group_id], key=_began)],
            group.repository,
            group.difficulty,
        )
        for group in groups
    }


def stored_results(record: Mapping[str, Any]) -> dict[str, TaskResult]:
    """The attempts at each task, from the record of an evaluation."""
    return {task: TaskResult(**result) for task, result in record["results"].items()}


def _part(results: Mapping[str, TaskResult], name: str) -> dict[str, Any]:
    return {
        part: {"tasks": len(members)} | {"pass_at": {str(k): rate.to_json() for k, rate in rates(members).items()}}
        for part, members in by_part(results, name).items()
    }


def _began(trial: StoredTrial) -> tuple[float, str]:
    record = trial.record
    return record["started_at"] - record["timings"].get("retries", 0.0), trial.session_id
