"""What shows in how trials end: infrastructure that fails, and validation that measures it."""

import math
from collections import Counter

import pyarrow as pa

from flows.diagnosis.causes import LikelyCause, infrastructure_causes
from flows.diagnosis.facts import Metrics, RunFacts
from flows.diagnosis.signatures import Signature, signature
from flows.diagnosis.state import RunState
from flows.preflight.findings import Level
from tasks.journal import eval_label, step_label

AVALANCHE = 0.25
"""Share of a step's trials lost to infrastructure from which it is one."""
_FEWEST_TRIALS = 8
_SHOWN = 5
_LUCK = 0.01
"""Chance of a score of 0 by luck below which it is not taken for luck."""
MOSTLY_DROPPED, DROPPED_STEPS = 0.1, 3
TIMED_OUT, CUT = 0.25, 0.3


@signature("env-avalanche")
def env_avalanche(facts: RunFacts, state: RunState) -> Signature | None:
    """A large share of the newest trials was lost to infrastructure, by records or in the step that is under way."""
    shares = _infra_shares(facts)
    label, present = _under_way(facts, state)
    told = []
    errors: Counter[str] = Counter()
    if present is not None and present.num_rows >= _FEWEST_TRIALS:
        lost = infra_errors(present)
        if lost.total() >= AVALANCHE * present.num_rows:
            told.append(f"{label}, under way: {lost.total()} of {present.num_rows} trials that ended were lost to it")
            errors = lost
    if not told and (not shares or shares[-1][1] < AVALANCHE):
        return None
    errors = errors or infra_errors(facts.trials(step_label(shares[-1][0])))
    share = told[0] if told else f"{shares[-1][1]:.0%} of the trials of step {shares[-1][0]} were lost to it"
    causes = infrastructure_causes(errors) or [
        LikelyCause("not known", "the trials of the step are gone", "testgrad doctor")
    ]
    return Signature(
        "env-avalanche", Level.FATAL, f"infrastructure fails: {share}", {"infra_share": shares[-_SHOWN:]}, causes, told
    )


def infra_errors(trials: pa.Table) -> Counter[str]:
    """What trials lost to infrastructure say, the grading's reasons included."""
    texts: Counter[str] = Counter()
    for outcome, error, status, reason in zip(
        *(trials[name].to_pylist() for name in ("outcome", "error", "status", "reason")), strict=True
    ):
        if outcome == "infra_error":
            texts[error or ""] += 1
        elif status == "infra_error":
            texts[f"grading: {reason or ''}"] += 1
    return texts


def _infra_shares(facts: RunFacts) -> list[tuple[int, float]]:
    shares = []
    for step, metrics in sorted(facts.metrics.items()):
        launched = sum(value for name, value in metrics.items() if name.startswith("outcome/") and math.isfinite(value))
        lost = metrics.get("outcome/infra_error", 0.0) + metrics.get("verdict/infra_error", 0.0)
        if launched and math.isfinite(lost):
            shares.append((step, lost / launched))
    return shares


def _under_way(facts: RunFacts, state: RunState) -> tuple[str, pa.Table | None]:
    if state.stage is None or state.stage.name != "trials" or not state.stage.done:
        return "", None
    return state.stage.label, facts.trials(state.stage.label)


@signature("val-fake-zero")
def val_fake_zero(facts: RunFacts, state: RunState) -> Signature | None:
    """Validation scores 0 where training shows that the policy solves tasks, or could score nothing at all."""
    if not facts.evaluations:
        return None
    step = max(facts.evaluations)
    record = facts.evaluations[step]
    scored, launched, mean = (_number(record.get(name)) for name in ("scored", "launched", "mean_reward"))
    if launched is None or not launched or scored is None:
        return None
    near = [(s, v) for s, v in facts.series("critic/score/mean") if abs(s - step) <= _SHOWN]
    lost = {str(k): int(v) for k, v in dict(record.get("left_out") or {}).items() if _number(v)}
    coverage = f"{scored:.0f} of {launched:.0f} trials scored" + (f", left out: {lost}" if lost else "")
    luck = None
    if scored and mean == 0 and near:
        p = sum(v for _, v in near) / len(near)
        luck = (1 - min(max(p, 0.0), 1.0)) ** scored
    if scored and (luck is None or luck >= _LUCK):
        return None
    told = [f"after step {step}: {coverage}"]
    if luck is not None:
        told.append(f"at training's score, none of {scored:.0f} solved has a chance of {luck:.1g}")
    causes = infrastructure_causes(infra_errors(facts.trials(eval_label(step))))
    causes.append(
        LikelyCause(
            "the held-out tasks cannot be solved as they are graded here",
            coverage,
            "testgrad pool validate on data.heldout; testgrad regrade grades the archived patches again",
        )
    )
    claim = "validation scores 0, training does not" if scored else "validation could score nothing"
    return Signature("val-fake-zero", Level.FATAL, claim, {"critic/score/mean": near}, causes, told)


@signature("dropped-batch")
def dropped_batch(facts: RunFacts, state: RunState) -> Signature | None:
    """More than a tenth of the trials leaves the batch, in each of the last three steps."""
    ratio = facts.series("trajectory_filter/invalid_ratio", DROPPED_STEPS)
    if len(ratio) < DROPPED_STEPS or any(value <= MOSTLY_DROPPED for _, value in ratio):
        return None
    step = ratio[-1][0]
    causes = drop_causes(facts.metrics[step], step)
    if not causes:
        causes = [LikelyCause("not known", "the record names no reason", "testgrad trials RUN")]
    claim = f"{ratio[-1][1]:.0%} of the trials are left out of the batch"
    level = Level.FATAL if all(value > 0.5 for _, value in ratio) else Level.WARN
    return Signature("dropped-batch", level, claim, {"trajectory_filter/invalid_ratio": ratio}, causes)


def drop_causes(metrics: Metrics, step: int, most: int = 3) -> list[LikelyCause]:
    """Why trials of a step were left out of its batch, by how many."""
    prefix = "trajectory_filter/reason/"
    counts = [(name.removeprefix(prefix), v) for name, v in metrics.items() if name.startswith(prefix) and v > 0]
    causes = []
    for reason, count in sorted(counts, key=lambda entry: -entry[1])[:most]:
        cause, mend = _REASONS.get(reason, (reason, "look at them: testgrad trials RUN"))
        causes.append(LikelyCause(cause, f"{count:.0f} trials of step {step}", mend))
    return causes


_REASONS = {
    "infra_error": ("infrastructure failed the trial", "see env-avalanche; testgrad doctor"),
    "verifier_infra_error": ("the grading broke", "testgrad doctor; testgrad regrade grades again"),
    "nothing_sampled": ("the policy never came to speak", "read such a trial: does the agent start at all?"),
    "lone_survivor": ("the others of its group were left out", "mend what took them out"),
    "no_greedy_baseline": ("its greedy trial was lost", "mend what took it out"),
    "too_short": ("answers are shorter than filter.min_response_tokens", "lower it, or look at such answers"),
    "agent_timeout": ("agents run out of time, and filter.drop_outcomes drops them", "raise scaffold.agent_timeout"),
    "overlong": ("conversations fill the window, and filter.drop_outcomes drops them", "raise serving.window"),
    "max_turns": ("agents run out of turns, and filter.drop_outcomes drops them", "raise scaffold.max_turns"),
}


@signature("timeouts")
def timeouts(facts: RunFacts, state: RunState) -> Signature | None:
    """A quarter of the trials or more runs out of time, in each of the last three steps."""
    shares = []
    for step, _ in facts.series("outcome/agent_timeout", DROPPED_STEPS):
        metrics = facts.metrics[step]
        launched = sum(v for name, v in metrics.items() if name.startswith("outcome/"))
        if launched:
            shares.append((step, metrics["outcome/agent_timeout"] / launched))
    if len(shares) < DROPPED_STEPS or any(value < TIMED_OUT for _, value in shares):
        return None
    generate = facts.series("timing_s/agent_loop/generate/mean", DROPPED_STEPS)
    agent = facts.series("timing_s/agent_loop/agent/mean", DROPPED_STEPS)
    waiting = bool(generate and agent) and generate[-1][1] > 0.7 * agent[-1][1]
    limit = facts.setting("scaffold.agent_timeout", "each task's own")
    cause = (
        LikelyCause(
            "the engine is the bottleneck: agents spend their time waiting for answers",
            f"{generate[-1][1]:.0f} of {agent[-1][1]:.0f} s of a trial are the policy's",
            "add replicas, or lower rollout.concurrency",
        )
        if waiting
        else LikelyCause(
            "the time is too short for these tasks",
            f"scaffold.agent_timeout is {limit}",
            "raise scaffold.agent_timeout",
        )
    )
    evidence = {"agent_timeout share": shares, "timing_s/agent_loop/generate/mean": generate,
                "timing_s/agent_loop/agent/mean": agent}  # fmt: skip
    return Signature("timeouts", Level.WARN, f"{shares[-1][1]:.0%} of the trials run out of time", evidence, [cause])


@signature("truncation")
def truncation(facts: RunFacts, state: RunState) -> Signature | None:
    """Three trials in ten or more fill the window, in each of the last three steps."""
    ratio = facts.series("response_length/clip_ratio", DROPPED_STEPS)
    if len(ratio) < DROPPED_STEPS or any(value < CUT for _, value in ratio):
        return None
    length = facts.series("response_length/mean")
    window = facts.setting("serving.window", "?")
    first = length[0][1] if length else math.nan
    grown = len(length) > DROPPED_STEPS and length[-1][1] > 1.3 * first
    cause = (
        LikelyCause(
            "answers grow from step to step",
            f"{first:.0f} tokens at step {length[0][0]}, {length[-1][1]:.0f} at step {length[-1][0]}",
            "reward.overlong_buffer charges for length; or raise serving.window",
        )
        if grown
        else LikelyCause(
            "the window is too small for these trials", f"serving.window is {window}", "raise serving.window"
        )
    )
    evidence = {"response_length/clip_ratio": ratio, "response_length/mean": length[-_SHOWN:]}
    return Signature("truncation", Level.WARN, f"{ratio[-1][1]:.0%} of the trials fill the window", evidence, [cause])


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
