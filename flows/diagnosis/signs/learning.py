"""What shows in the update: engine and trainer that disagree, weights that do not move, gradients that starve."""

import math
import statistics

from flows.diagnosis.causes import LikelyCause, fidelity_causes
from flows.diagnosis.facts import RunFacts
from flows.diagnosis.signatures import Series, Signature, signature
from flows.diagnosis.state import RunState
from flows.preflight.findings import Level
from tasks.journal import step_label
from trainer.fidelity.judge import PEARSON

ESS = "rollout_corr/rollout_is_eff_sample_size"
STARVED_ESS = 0.3
STARVED_SIGNAL = 0.1
"""Share of groups with a signal below which the gradient is that of a few tasks."""
FALLEN = 5.0
"""Times the gradient norm must have fallen below the run's own earlier median."""
_ROW, _HISTORY, _SHOWN = 3, 5, 6


@signature("misaligned")
def misaligned(facts: RunFacts, state: RunState) -> Signature | None:
    """Engine and trainer do not give the same probabilities: the newest step misses fidelity.threshold."""
    threshold = float(facts.setting("fidelity.threshold", 0.99))
    pearson = facts.series(PEARSON)
    if not pearson or pearson[-1][0] != max(facts.metrics) or pearson[-1][1] >= threshold:
        return None
    step, value = pearson[-1]
    stored = facts.read_json(facts.journal.stage_dir(step_label(step)) / "fidelity.json")
    evidence = {PEARSON: pearson[-_SHOWN:], "rollout_corr/kl": facts.series("rollout_corr/kl", _SHOWN)}
    evidence |= {name: facts.series(name, _SHOWN) for name in replay_metrics(facts)}
    claim = f"engine and trainer disagree: Pearson {value:.4f} at step {step}, below {threshold:g}"
    return Signature("misaligned", Level.FATAL, claim, evidence, fidelity_causes(stored))


def replay_metrics(facts: RunFacts) -> list[str]:
    """Metrics that tell for how many tokens the choice of experts was replayed."""
    newest = facts.metrics[max(facts.metrics)] if facts.metrics else {}
    return sorted(name for name in newest if "replay" in name and "coverage" in name)


@signature("frozen-model")
def frozen_model(facts: RunFacts, state: RunState) -> Signature | None:
    """The weights do not move: equal fingerprints after several updates, or a rate of 0."""
    fingerprints = _fingerprints(facts)
    rate, skipped = facts.series("actor/lr", _ROW), facts.series("actor/skipped_steps", _ROW)
    norm, signal = facts.series("actor/grad_norm", _ROW), facts.series("batch/groups_with_signal", _ROW)
    same = len(fingerprints) == _ROW and len({f for _, f in fingerprints}) == 1
    no_rate = len(rate) == _ROW and all(value == 0 for _, value in rate)
    if not (same or no_rate):
        return None
    evidence: dict[str, Series] = {"actor/lr": rate, "actor/skipped_steps": skipped, "actor/grad_norm": norm}
    told = []
    if same:
        first, last = fingerprints[0][0], fingerprints[-1][0]
        told.append(f"the weights after steps {first} to {last} have one fingerprint, {fingerprints[0][1][:12]}")
    causes = []
    if no_rate:
        causes.append(
            LikelyCause("the learning rate is 0", f"actor/lr in {len(rate)} steps", "set learner.lr, or its schedule")
        )
    if len(skipped) == _ROW and all(value >= 1 for _, value in skipped) and not norm:
        causes.append(
            LikelyCause(
                "gradients are not finite, and such updates are skipped",
                f"each of {len(skipped)} steps skipped updates, and none has a finite actor/grad_norm",
                "lower learner.lr, or set learner.dtype: float32",
            )
        )
    if signal and all(value == 0 for _, value in signal):
        causes.append(
            LikelyCause(
                "no group carries a signal", f"batch/groups_with_signal is 0 in {len(signal)} steps", _EASE_OR_HARDEN
            )
        )
    if not causes and same:
        causes.append(
            LikelyCause(
                "updates do not reach the weights",
                "learning rate and gradient are not 0, and the weights are the same",
                "compare dtype and lr: in bfloat16 a small step is rounded away; set learner.dtype: float32",
            )
        )
    return Signature("frozen-model", Level.FATAL, "the weights do not move", evidence, causes, told)


_EASE_OR_HARDEN = "choose tasks by difficulty (data.difficulty, testgrad pool), or raise rollout.attempts_per_task"


def _fingerprints(facts: RunFacts) -> list[tuple[int, str]]:
    """Digests of the weights after the newest updates."""
    found = []
    for step in list(facts.recorded)[-_ROW:]:
        update = facts.read_json(facts.journal.stage_dir(step_label(step)) / "update.json")
        if update is not None and update.get("fingerprint"):
            found.append((step, str(update["fingerprint"])))
    return found


@signature("starvation")
def starvation(facts: RunFacts, state: RunState) -> Signature | None:
    """Little of the batch carries the gradient: few effective samples, few groups with a signal, or a norm that fell.

    Each counts only if it holds for three steps in a row.
    """
    ess, norm, signal = facts.series(ESS), facts.series("actor/grad_norm"), _signal_shares(facts)
    causes = []
    evidence: dict[str, Series] = {}
    if len(ess) >= _ROW and all(value < STARVED_ESS for _, value in ess[-_ROW:]):
        weights = facts.setting("algorithm.rollout_correction.weights", "?")
        evidence[ESS] = ess[-_SHOWN:]
        causes.append(
            LikelyCause(
                "importance weights leave few rollouts to carry the gradient",
                f"the batch counts as {ess[-1][1]:.0%} of its size; algorithm.rollout_correction.weights is {weights}",
                "set weights to token"
                if weights == "sequence"
                else "look why engine and trainer differ: testgrad status tells of misaligned",
            )
        )
    if len(signal) >= _ROW and all(value < STARVED_SIGNAL for _, value in signal[-_ROW:]):
        evidence["batch/groups_with_signal ratio"] = signal[-_SHOWN:]
        causes.append(_no_signal(facts, signal))
    before = [value for _, value in norm[:-_ROW]]
    if len(before) >= _HISTORY and all(v < statistics.median(before) / FALLEN for _, v in norm[-_ROW:]):
        evidence["actor/grad_norm"] = norm[-_SHOWN:]
        told = f"its median was {statistics.median(before):.3g} before, and is {norm[-1][1]:.3g} now"
        if not causes:
            causes.append(
                LikelyCause(
                    "the gradient has fallen far below its own history",
                    told,
                    "look at signal, entropy and lengths of the report at the step where it fell",
                )
            )
    if not causes:
        return None
    return Signature("starvation", Level.WARN, "the gradient starves", evidence, causes)


def _signal_shares(facts: RunFacts) -> list[tuple[int, float]]:
    """Groups that carried a signal, of all that were drawn: those that a filter took out count as well."""
    shares = []
    for step, metrics in sorted(facts.metrics.items()):
        groups = metrics.get("batch/groups", math.nan)
        drawn = metrics.get("training/filter_groups/drawn_groups", groups)
        share = metrics.get("batch/groups_with_signal", math.nan) / drawn if drawn else math.nan
        if math.isfinite(share):
            shares.append((step, share))
    return shares


def _no_signal(facts: RunFacts, signal: Series) -> LikelyCause:
    newest = facts.metrics[signal[-1][0]]
    filtered = "training/filter_groups/filtered_reward_counts"
    none = newest.get("batch/solve_none", 0.0) + newest.get(f"{filtered}/0", 0.0)
    whole = newest.get("batch/solve_all", 0.0) + newest.get(f"{filtered}/1", 0.0)
    kind, mend = (
        ("the tasks are too hard", "take easier ones: testgrad pool, data.difficulty")
        if none >= whole
        else ("the tasks are too easy by now", "take harder ones: testgrad pool, data.difficulty")
    )
    shown = f"at step {signal[-1][0]} {none:.0f} groups solved nothing, {whole:.0f} everything"
    return LikelyCause(kind, f"{signal[-1][1]:.0%} of the groups carry a signal; {shown}", mend)


@signature("flat-zero")
def flat_zero(facts: RunFacts, state: RunState) -> Signature | None:
    """No trial has earned anything since step 1, for three steps or more."""
    score = facts.series("critic/score/mean")
    if len(score) < _ROW or any(value != 0 for _, value in score):
        return None
    trials = sum(m.get("batch/rollouts", 0.0) for m in facts.metrics.values())
    if not trials:
        return None
    from flows.diagnosis.reward import zero_causes

    causes = zero_causes(facts, facts.trials(step_label(score[-1][0])))
    claim = f"no reward in any of {trials:.0f} rollouts of {len(score)} steps"
    return Signature("flat-zero", Level.FATAL, claim, {"critic/score/mean": score[-_SHOWN:]}, causes)
