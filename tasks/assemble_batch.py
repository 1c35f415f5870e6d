"""Stage 4 of a step: which rollouts reach the optimizer, and with what reward."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prefect import task

from harness.verifier.verdict import Status
from tasks.journal import write_table
from tasks.policy import staged
from tasks.run import RunRef
from tasks.trial_files import StoredTrial, load_trial
from trainer.batch import make_batch
from trainer.metrics import distribution
from trainer.rollout import Outcome, Rollout


@dataclass(frozen=True)
class Scored:
    """A trial that can be trained on."""

    rollout: Rollout
    reward: float


@task(**staged("assemble_batch", timeout=600))
async def assemble_batch(run: RunRef, label: str) -> dict[str, float]:
    """Write batch.parquet, without advantages yet. Returns metrics of the round's trials."""
    trials = [load_trial(folder) for folder in run.journal.trials(label)]
    scored, reasons = filter_trials(trials)
    survivors = keep_groups(scored, reasons)
    write_table(
        run.journal.stage_dir(label) / "batch.parquet",
        make_batch([s.rollout for s in survivors], [s.reward for s in survivors]),
    )
    return trial_metrics(trials) | batch_metrics(survivors) | filter_metrics(reasons, len(trials))


def filter_trials(trials: Sequence[StoredTrial]) -> tuple[list[Scored], Counter[str]]:
    """Trials with a token record and a verdict; the others leave both their group's baseline and the loss.

    Only what the policy cannot cause is left out: an infrastructure failure of the trial or of its grading, and a trial
    in which the policy never came to speak.
    """
    scored: list[Scored] = []
    reasons: Counter[str] = Counter()
    for trial in trials:
        if trial.outcome is Outcome.INFRA_ERROR:
            reasons["infra_error"] += 1
            continue
        if trial.verdict is None or trial.verdict.status is Status.INFRA_ERROR:
            reasons["verifier_infra_error"] += 1
            continue
        rollout = trial.rollout()
        if rollout is None or not rollout.response_length:
            reasons["nothing_sampled"] += 1
            continue
        scored.append(Scored(rollout, trial.verdict.reward))
    return scored, reasons


def keep_groups(scored: Sequence[Scored], reasons: Counter[str]) -> list[Scored]:
    """Rollouts of groups with at least two survivors; one alone has nothing to be compared with."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for item in scored:
        groups[item.rollout.group_id].append(item)
    reasons["lone_survivor"] += sum(len(group) for group in groups.values() if len(group) < 2)
    return [item for group in groups.values() if len(group) >= 2 for item in group]


def filter_metrics(reasons: Counter[str], launched: int) -> dict[str, float]:
    """What the trajectory filter took out."""
    invalid = sum(reasons.values())
    return {
        "trajectory_filter/invalid_count": float(invalid),
        "trajectory_filter/invalid_ratio": invalid / launched if launched else 0.0,
    } | {f"trajectory_filter/reason/{reason}": float(count) for reason, count in sorted(reasons.items())}


def batch_metrics(scored: Sequence[Scored]) -> dict[str, float]:
    """Rewards, lengths and signal of the batch, under verl's names."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for item in scored:
        rewards[item.rollout.group_id].append(item.reward)
    values = [item.reward for item in scored]
    return {
        **distribution("critic/score", values),
        **distribution("critic/rewards", values),
        **distribution("response_length", [float(item.rollout.response_length) for item in scored]),
        **distribution("prompt_length", [float(item.rollout.prompt_length) for item in scored]),
        "batch/rollouts": float(len(scored)),
        "batch/groups": float(len(rewards)),
        "batch/groups_with_signal": float(sum(len(set(group)) > 1 for group in rewards.values())),
        "batch/solve_none": float(sum(not any(group) for group in rewards.values())),
        "batch/solve_all": float(sum(all(group) for group in rewards.values())),
    }


def trial_metrics(trials: Sequence[StoredTrial]) -> dict[str, float]:
    """Outcomes, verdicts and stage times of all trials that were launched."""
    outcomes = Counter(trial.outcome for trial in trials)
    statuses = Counter(trial.verdict.status for trial in trials if trial.verdict is not None)
    metrics = {f"outcome/{outcome}": float(outcomes[outcome]) for outcome in Outcome}
    metrics |= {f"verdict/{status}": float(statuses[status]) for status in Status}
    metrics |= distribution("num_turns", [float(trial.record["turns"]) for trial in trials])
    metrics |= distribution("rollout/segments", [float(trial.record["num_segments"]) for trial in trials])
    metrics["response_length/clip_ratio"] = _share(trials, lambda record: record["outcome"] == Outcome.OVERLONG)
    stages = sorted({stage for trial in trials for stage in trial.record["timings"]})
    for stage in stages:
        times = [trial.record["timings"][stage] for trial in trials if stage in trial.record["timings"]]
        metrics |= distribution(f"timing_s/agent_loop/{stage}", times)
    metrics |= distribution(
        "timing_s/agent_loop/verifier", [t.verdict.seconds for t in trials if t.verdict is not None]
    )
    return metrics


def _share(trials: Sequence[StoredTrial], holds: Any) -> float:
    return sum(holds(trial.record) for trial in trials) / len(trials) if trials else 0.0
