"""Stage 4 of a step: which rollouts reach the optimizer, and with what reward."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prefect import task

from harness.verifier.verdict import Status
from tasks.config import FilterConfig
from tasks.draw import Group, read_draws
from tasks.groups import to_the_end
from tasks.journal import JournalError, write_table
from tasks.policy import staged
from tasks.reward import Reward, RewardConfig, reward_trials
from tasks.run import RunRef
from tasks.trial_files import StoredTrial, load_trial
from trainer.batch import BatchRow, make_batch
from trainer.metrics import distribution
from trainer.rollout import Outcome

NO_FILTER = FilterConfig()


@dataclass(frozen=True)
class Scored:
    """A trial that can be trained on.

    `score` is the verdict's reward, `reward` what shaping made of it, `named` the parts of that. `baseline` is the
    reward of the group's greedy trial, None if the algorithm needs none.
    """

    trial: StoredTrial
    score: float
    reward: float
    named: Mapping[str, float] = field(default_factory=dict)
    baseline: float | None = None

    @property
    def group_id(self) -> str:
        return self.trial.group_id

    def rows(self) -> list[BatchRow]:
        """The trial's rows of the batch, one for each segment that is trained."""
        rollouts = self.trial.rollouts()
        if not rollouts:
            raise JournalError(f"{self.trial.folder} tells of sampled tokens, but has no rollout.parquet")
        return [BatchRow(rollout, self.score, self.reward, self.named, self.baseline) for rollout in rollouts]


@dataclass(frozen=True)
class Selection:
    """What is chosen of a step's trials. `survivors` make up the batch; `greedy` trials only give baselines."""

    draws: Sequence[Sequence[Group]]
    trials: Sequence[StoredTrial]
    greedy: Sequence[Scored]
    survivors: Sequence[Scored]
    uniform: Sequence[Sequence[Scored]]
    reasons: Mapping[str, int]

    @property
    def accepted(self) -> int:
        """Groups in the batch."""
        return len({item.group_id for item in self.survivors})


@task(**staged("assemble_batch", timeout=600))
async def assemble_batch(
    run: RunRef, label: str, filters: FilterConfig, reward: RewardConfig, by_name: bool = False
) -> dict[str, float]:
    """Write batch.parquet, without advantages yet. Returns metrics of the round's trials.

    Args:
        by_name: Whether the algorithm tells named rewards apart, so that they too are a group's signal.
    """
    # in a thread: trials may run in this loop
    return await to_the_end(_assemble, run, label, filters, reward, by_name)


def _assemble(run: RunRef, label: str, filters: FilterConfig, reward: RewardConfig, by_name: bool) -> dict[str, float]:
    chosen = select_rollouts(run, label, filters, reward, by_name)
    path = run.journal.stage_dir(label) / "batch.parquet"
    # an update that was made is replayed from its batch, which has more columns by now
    if run.journal.stage(label, "update.json") is None or not path.is_file():
        write_table(path, make_batch([row for item in chosen.survivors for row in item.rows()]))
    return (
        trial_metrics(chosen.trials)
        | filter_metrics(chosen.reasons, len(chosen.trials))
        | group_metrics(chosen)
        | distribution("critic/greedy_baseline", [item.reward for item in chosen.greedy])
    )


def select_rollouts(run: RunRef, label: str, filters: FilterConfig, reward: RewardConfig, by_name: bool) -> Selection:
    """What of a step's graded trials can be trained on, as far as the journal goes.

    Raises:
        RewardError: the reward function failed.
        JournalError: a trial belongs to none of the step's groups.
    """
    draws = read_draws(run.journal.stage_dir(label))
    groups = {group.group_id: group for draw in draws for group in draw}
    trials = [load_trial(folder) for folder in run.journal.trials(label)]
    for trial in trials:
        if trial.group_id not in groups:
            raise JournalError(f"{trial.folder}: group {trial.group_id!r} is none of this round's")
        if trial.outcome is not Outcome.INFRA_ERROR and trial.verdict is None:
            raise JournalError(
                f"{trial.folder} ended, but was never graded; start the run again, which makes up for it"
            )
    baselines = {group.group_id: group.baseline_of for group in groups.values() if group.greedy}
    sampled = [trial for trial in trials if trial.group_id not in baselines]

    scored, reasons = filter_trials(sampled, filters)
    greedy, _ = filter_trials([trial for trial in trials if trial.group_id in baselines], filters)
    rewards = reward_trials(run, label, [item.trial for item in (*scored, *greedy)], reward)
    scored, greedy = shaped(scored, rewards), shaped(greedy, rewards)

    survivors = keep_groups(scored, reasons)
    if baselines:
        survivors = with_baselines(survivors, {baselines[item.group_id]: item.reward for item in greedy}, reasons)
    uniform: list[list[Scored]] = []
    if filters.drop_uniform_groups:
        survivors, uniform = split_by_signal(survivors, by_name)
    return Selection(draws, sampled, greedy, survivors, uniform, reasons)


def filter_trials(
    trials: Sequence[StoredTrial], filters: FilterConfig = NO_FILTER, needs_tokens: bool = True
) -> tuple[list[Scored], Counter[str]]:
    """Trials with a token record and a verdict; the others leave both their group's baseline and the loss.

    Unless `filters` asks for more, only what the policy cannot cause is left out: an infrastructure failure of the
    trial or of its grading, and a trial in which the policy never came to speak. Also counts what is left out, by
    reason. Rewards are the verdicts'.

    Without `needs_tokens`, where nothing is trained on them, trials count whose first answer took all of their time.
    """
    scored: list[Scored] = []
    reasons: Counter[str] = Counter()
    for trial in trials:
        tokens = int(trial.record["response_length"])
        if trial.outcome is Outcome.INFRA_ERROR:
            reasons["infra_error"] += 1
        elif trial.verdict is None or trial.verdict.status is Status.INFRA_ERROR:
            reasons["verifier_infra_error"] += 1
        elif trial.outcome in filters.drop_outcomes:
            reasons[str(trial.outcome)] += 1
        elif not (trial.has_answers if needs_tokens else trial.was_judged):
            reasons["nothing_sampled"] += 1
        elif tokens < filters.min_response_tokens:
            reasons["too_short"] += 1
        else:
            scored.append(Scored(trial, trial.verdict.reward, trial.verdict.reward))
    return scored, reasons


def shaped(scored: Sequence[Scored], rewards: Mapping[str, Reward]) -> list[Scored]:
    """The same trials with the rewards that their sessions were given."""
    return [
        replace(item, reward=reward.reward, named=reward.named)
        for item in scored
        for reward in (rewards[item.trial.session_id],)
    ]


def keep_groups(scored: Sequence[Scored], reasons: Counter[str]) -> list[Scored]:
    """Trials of groups with at least two survivors; one alone has nothing to be compared with."""
    groups = _by_group(scored)
    reasons["lone_survivor"] += sum(len(group) for group in groups.values() if len(group) < 2)
    return [item for group in groups.values() if len(group) >= 2 for item in group]


def with_baselines(scored: Sequence[Scored], baselines: Mapping[str, float], reasons: Counter[str]) -> list[Scored]:
    """Trials with the reward of their group's greedy trial; those of a group that lost it are left out."""
    kept = [replace(item, baseline=baselines[item.group_id]) for item in scored if item.group_id in baselines]
    reasons["no_greedy_baseline"] += len(scored) - len(kept)
    return kept


def split_by_signal(scored: Sequence[Scored], by_name: bool) -> tuple[list[Scored], list[list[Scored]]]:
    """Trials of groups that can teach something, and the groups that cannot."""
    groups = _by_group(scored)
    kept = [item for group in groups.values() if has_signal(group, by_name) for item in group]
    return kept, [group for group in groups.values() if not has_signal(group, by_name)]


def has_signal(group: Sequence[Scored], by_name: bool) -> bool:
    """Whether rewards of a group differ: from each other, from the greedy baseline, or if `by_name` in one name."""
    seen = {item.reward for item in group} | {item.baseline for item in group if item.baseline is not None}
    return len(seen) > 1 or (by_name and any(len({item.named[name] for item in group}) > 1 for name in group[0].named))


def _by_group(scored: Sequence[Scored]) -> dict[str, list[Scored]]:
    groups: dict[str, list[Scored]] = defaultdict(list)
    for item in scored:
        groups[item.group_id].append(item)
    return groups


def filter_metrics(reasons: Mapping[str, int], launched: int) -> dict[str, float]:
    """What the trajectory filter took out."""
    invalid = sum(reasons.values())
    return {
        "trajectory_filter/invalid_count": float(invalid),
        "trajectory_filter/invalid_ratio": invalid / launched if launched else 0.0,
    } | {f"trajectory_filter/reason/{reason}": float(count) for reason, count in sorted(reasons.items())}


def group_metrics(chosen: Selection) -> dict[str, float]:
    """What the group filter took out, and how often fresh tasks were tried for it.

    As verl counts, an evicted sample is a group. The counts by reward tell groups that failed throughout from groups
    that passed throughout, by their verdicts; `mixed` are those that shaping made equal.
    """
    scores = [{item.score for item in group} for group in chosen.uniform]
    prefix = "training/filter_groups"
    return {
        f"{prefix}/drawn_groups": float(sum(not group.greedy for draw in chosen.draws for group in draw)),
        f"{prefix}/accepted_groups": float(chosen.accepted),
        f"{prefix}/refill_rounds": float(len(chosen.draws) - 1),
        f"{prefix}/evicted_samples": float(len(scores)),
        f"{prefix}/filtered_reward_counts/0": float(sum(score == {0.0} for score in scores)),
        f"{prefix}/filtered_reward_counts/1": float(sum(score == {1.0} for score in scores)),
        f"{prefix}/filtered_reward_counts/mixed": float(sum(len(score) > 1 for score in scores)),
    }


def trial_metrics(trials: Sequence[StoredTrial]) -> dict[str, float]:
    """Outcomes, verdicts and stage times of all trials that were launched."""
    outcomes = Counter(trial.outcome for trial in trials)
    statuses = Counter(trial.verdict.status for trial in trials if trial.verdict is not None)
    metrics = {f"outcome/{outcome}": float(outcomes[outcome]) for outcome in Outcome}
    metrics |= {f"verdict/{status}": float(statuses[status]) for status in Status}
    metrics |= capture_metrics(trials)
    metrics["response_length/clip_ratio"] = _share(trials, lambda record: record["outcome"] == Outcome.OVERLONG)
    stages = sorted({stage for trial in trials for stage in trial.record["timings"]})
    for stage in stages:
        times = [trial.record["timings"][stage] for trial in trials if stage in trial.record["timings"]]
        metrics |= distribution(f"timing_s/agent_loop/{stage}", times)
    metrics |= distribution(
        "timing_s/agent_loop/verifier", [t.verdict.seconds for t in trials if t.verdict is not None]
    )
    return metrics


def capture_metrics(trials: Sequence[StoredTrial]) -> dict[str, float]:
    """What the proxy counted: segments by trial, and sums over all trials of what a conversation should seldom do."""
    metrics = distribution("rollout/segments", [float(trial.record["num_segments"]) for trial in trials])
    metrics |= distribution("rollout/trained_segments", [float(trial.record["trained_segments"]) for trial in trials])
    counts: Counter[str] = Counter()
    for trial in trials:
        counts.update(trial.record["counters"])
    return metrics | {f"rollout/{name}": float(count) for name, count in sorted(counts.items()) if name != "segments"}


def _share(trials: Sequence[StoredTrial], holds: Any) -> float:
    return sum(holds(trial.record) for trial in trials) / len(trials) if trials else 0.0
