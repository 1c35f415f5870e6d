"""The verdict on a run's first step: what must be right before days are spent on the rest.

Each check is a function of the step's facts that yields `Judged`: a finding as those of `testgrad check`, the likely
causes of what is not well, in order, and whether going on is senseless. They are made in the order in which things go
wrong: trials, reward, agreement of engine and trainer, update.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from flows.diagnosis.causes import LikelyCause, fidelity_causes, infrastructure_causes
from flows.diagnosis.facts import Metrics, RunFacts, counted
from flows.diagnosis.reward import one_causes, zero_causes
from flows.diagnosis.signs.environment import drop_causes, infra_errors
from flows.diagnosis.signs.learning import replay_metrics
from flows.diagnosis.tool_calls import ToolUse, count_tool_use
from flows.preflight.findings import Finding, Level, fatal, ok, warn
from tasks.journal import step_label
from trainer.fidelity.judge import MEAN_DIFF, PEARSON

FIRST_STEP = "first_step.json"
SOME_LOST, MANY_LOST = 0.02, 0.25
"""Shares of trials lost to infrastructure from which it is told, and from which the step measures it."""
FEW_GROUPS = 0.2
CLIPPED, CLIPPED_AWAY = 10.0, 100.0
"""Times that a gradient norm may exceed learner.grad_clip before it is told, and before little of it is left."""
MANY_CUT = 0.5
COVERED = 0.999


@dataclass(frozen=True)
class Judged:
    """A line of the verdict. `stops`: these facts leave nothing to go on with."""

    finding: Finding
    causes: tuple[LikelyCause, ...] = ()
    stops: bool = False

    def to_json(self) -> dict[str, Any]:
        return self.finding.to_json() | {"causes": [cause.to_json() for cause in self.causes], "stops": self.stops}


@dataclass(frozen=True)
class FirstStep:
    """What the checks look at: a step's metrics, its trials, and how its agents used tools."""

    facts: RunFacts
    step: int
    metrics: Metrics
    trials: pa.Table
    tools: ToolUse | None

    def value(self, metric: str) -> float:
        """A metric, NaN if it is not there."""
        return self.metrics.get(metric, math.nan)

    @property
    def launched(self) -> int:
        return self.trials.num_rows

    @property
    def in_batch(self) -> float:
        """Rollouts that were trained on; 0 if the record does not say."""
        return self.metrics.get("batch/rollouts", 0.0)


Check = Callable[[FirstStep], Iterator[Judged]]


def judge_step(facts: RunFacts, step: int = 1) -> list[Judged]:
    """The verdict on a recorded step, line by line; empty if its record cannot be read."""
    metrics = facts.record(step)
    if metrics is None:
        return []
    label = step_label(step)
    trials = facts.trials(label)
    tools = count_tool_use(facts.journal.trials_dir(label), trials) if _calls_tools(facts) else None
    first = FirstStep(facts, step, metrics, trials, tools)
    return [
        replace(judged, finding=replace(judged.finding, check=name))
        for name, check in CHECKS.items()
        for judged in check(first)
    ]


def trials(first: FirstStep) -> Iterator[Judged]:
    """How the trials ended, and how many the infrastructure took."""
    if not first.launched:
        yield Judged(warn("trials", 0, "no trial of the step is in the journal", "look at trials/ and trials.parquet"))
        return
    errors = infra_errors(first.trials)
    lost, share = errors.total(), errors.total() / first.launched
    outcomes = ", ".join(f"{count} {name}" for name, count in counted(first.trials, "outcome").most_common())
    causes = tuple(infrastructure_causes(errors))
    if share > MANY_LOST:
        nothing = not first.in_batch
        why = f"were lost to infrastructure ({outcomes})" + (", and no rollout is left to train on" if nothing else "")
        mend = "mend it before more is spent: what is measured is the infrastructure"
        yield Judged(fatal("trials", f"{lost} of {first.launched}", why, mend), causes, stops=nothing)
        return
    if share > SOME_LOST:
        why = f"were lost to infrastructure ({outcomes})"
        yield Judged(warn("trials", f"{lost} of {first.launched}", why, "mend it while it is rare"), causes)
    else:
        yield Judged(ok("trials", first.launched, f"ended: {outcomes}; {lost} were lost to infrastructure"))
    if not first.in_batch:
        why = f"of {first.launched} trials nothing was left to train on"
        uniform = first.metrics.get("training/filter_groups/evicted_samples", 0.0)
        left_out = [*_late(first), *drop_causes(first.metrics, first.step)]
        if uniform:
            left_out.append(
                LikelyCause(
                    "groups whose rewards are all equal are left out",
                    f"{uniform:.0f} groups, by filter.drop_uniform_groups",
                    "choose tasks by difficulty, or allow filter.refill_rounds",
                )
            )
        yield Judged(fatal("batch/rollouts", 0, why, "see what took them out"), tuple(left_out))


def _late(first: FirstStep) -> Iterator[LikelyCause]:
    """Most trials ran out of time without a sampled token: the engine had not answered once."""
    rows = zip(first.trials["outcome"].to_pylist(), first.trials["response_length"].to_pylist(), strict=True)
    late = sum(outcome == "agent_timeout" and not length for outcome, length in rows)
    if late > first.launched / 2:
        yield LikelyCause(
            "agents ran out of time before the engine's first answer",
            f"{late} of {first.launched} trials ended as agent_timeout with nothing sampled",
            "raise scaffold.agent_timeout; logs/EXPERIMENT_vllm.log tells how long the engine took to warm up",
        )


def turns(first: FirstStep) -> Iterator[Judged]:
    """Whether agents act: turns and tool calls, where the scaffold has several of the one or any of the other."""
    mean, most = first.value("num_turns/mean"), int(first.facts.setting("scaffold.max_turns", 1))
    name = first.facts.setting("scaffold.name", "the scaffold")
    if not math.isfinite(mean):
        yield Judged(warn("num_turns/mean", "unknown", "no trial had a turn that was trained on", "see trials above"))
        return
    if most > 1 and mean <= 1:
        causes = (
            LikelyCause("tool calls are not understood", _told(first.tools), "testgrad check --only parser"),
            LikelyCause("the policy answers without acting", f"{name} ends then", "read a trial: testgrad trials RUN"),
        )
        why = f"every trial ended after its first answer, of {most} that {name} allows"
        yield Judged(fatal("num_turns/mean", mean, why, "read a trial, and mend it before more is spent"), causes)
    else:
        yield Judged(ok("num_turns/mean", mean, f"answers a trial, of {most} that {name} allows"))
    if first.tools is not None:
        yield _tool_calls(first, first.tools)


def _tool_calls(first: FirstStep, tools: ToolUse) -> Judged:
    parser = first.facts.setting("serving.tool_call_parser", "none")
    if not tools.answers:
        return Judged(warn("tool calls", "unknown", "no trajectory could be read", "testgrad trials RUN"))
    if not tools.calls:
        causes = []
        if tools.unreadable:
            causes.append(
                LikelyCause(
                    f"the parser {parser} does not fit what this model writes",
                    f"{tools.unreadable} answers hold a call that it could not read",
                    "testgrad check --only parser names those that fit",
                )
            )
        causes.append(
            LikelyCause(
                "the model does not know that it has tools, or cannot use them",
                f"0 calls in {tools.answers} answers of {tools.trials} trials",
                "look at what its chat template makes of tools: testgrad trials RUN",
            )
        )
        why = f"none in {tools.answers} answers of {tools.trials} trials, by the parser {parser}"
        return Judged(fatal("tool calls", 0, why, "an agent without tools repairs nothing"), tuple(causes))
    if tools.unreadable > tools.calls:
        cause = LikelyCause(
            f"the parser {parser} fits badly", f"{tools.unreadable} unreadable, {tools.calls} read", "testgrad check"
        )
        return Judged(warn("tool calls", tools.calls, "fewer were read than not", "look at some"), (cause,))
    return Judged(ok("tool calls", tools.calls, f"in {tools.answers} answers of {tools.trials} trials, by {parser}"))


def lengths(first: FirstStep) -> Iterator[Judged]:
    """Whether answers end of themselves, or at the limit."""
    limit = first.facts.setting("rollout.max_tokens_per_turn")
    rows = [
        (turn or 0, length or 0, outcome == "overlong")
        for turn, length, outcome in zip(
            *(first.trials[name].to_pylist() for name in ("turns", "response_length", "outcome")), strict=True
        )
        if turn
    ]
    if not rows or not isinstance(limit, int):
        return
    # a trial is at the limit if each of its answers has all the tokens that one may have
    cut = sum(length >= turn * limit or overlong for turn, length, overlong in rows)
    mean = sum(length for _, length, _ in rows) / len(rows)
    said = f"{mean:.0f} tokens sampled a trial; {cut} of {len(rows)} trials are cut at a limit"
    if cut == len(rows):
        cause = LikelyCause(
            "the engine does not end answers where the chat template does",
            f"all answers have the {limit} tokens of rollout.max_tokens_per_turn, or fill the window",
            "testgrad check --only chat-template, --only tokenizer: eos_token_id in all files of the model",
        )
        other = LikelyCause(
            "the limit is too low for this model", f"it is {limit}", "raise rollout.max_tokens_per_turn"
        )
        yield Judged(fatal("response_length", mean, said, "no answer is whole"), (cause, other))
    elif cut > MANY_CUT * len(rows):
        cause = LikelyCause(
            "the limit is low", f"it is {limit}", "raise rollout.max_tokens_per_turn, or serving.window"
        )
        yield Judged(warn("response_length", mean, said, "see whether cut answers can be right"), (cause,))
    else:
        yield Judged(ok("response_length", mean, said))


def reward(first: FirstStep) -> Iterator[Judged]:
    """Whether rewards differ: where all are equal there is nothing to learn."""
    low, high, mean = (first.value(f"critic/score/{part}") for part in ("min", "max", "mean"))
    if not math.isfinite(mean):
        yield Judged(warn("critic/score/mean", "unknown", "no trial was scored", "see trials above"))
        return
    count = f"in all of {first.in_batch:.0f} rollouts"
    if high <= 0:
        why = f"no reward {count}: nothing was learned, and this is more often the environment than the policy"
        causes = tuple(zero_causes(first.facts, first.trials))
        yield Judged(fatal("critic/score/mean", mean, why, "read a trial, and its verdict"), causes)
        return
    if low >= 1:
        why = f"the whole reward {count}: nothing was learned"
        yield Judged(fatal("critic/score/mean", mean, why, "see what the tests ask"), tuple(one_causes(first.trials)))
        return
    yield Judged(ok("critic/score/mean", mean, f"from {low:g} to {high:g} in {first.in_batch:.0f} rollouts"))
    signal, groups = first.value("batch/groups_with_signal"), first.value("batch/groups")
    drawn = first.metrics.get("training/filter_groups/drawn_groups", groups)
    if not math.isfinite(signal) or not drawn:
        return
    if signal < FEW_GROUPS * drawn:
        none, whole = first.metrics.get("batch/solve_none", 0.0), first.metrics.get("batch/solve_all", 0.0)
        hard = none >= whole
        cause = LikelyCause(
            "the tasks are too hard" if hard else "the tasks are too easy",
            f"{none:.0f} groups solved nothing, {whole:.0f} everything",
            "choose by difficulty (testgrad pool, data.difficulty), or raise rollout.attempts_per_task",
        )
        why = f"of {drawn:.0f} groups carry a signal: the gradient is that of a few tasks"
        yield Judged(warn("batch/groups_with_signal", signal, why, "mend the choice of tasks"), (cause,))
    else:
        yield Judged(ok("batch/groups_with_signal", signal, f"of {drawn:.0f} groups carry a signal"))


def agreement(first: FirstStep) -> Iterator[Judged]:
    """Whether engine and trainer give the sampled tokens the same probabilities."""
    threshold = float(first.facts.setting("fidelity.threshold", 0.99))
    pearson, difference = first.value(PEARSON), first.value(MEAN_DIFF)
    if not math.isfinite(difference):
        yield Judged(warn(PEARSON, "unknown", "no token was compared", "see trials above: the batch may be empty"))
        return
    if math.isnan(pearson) and difference < 1 - threshold:
        why = f"all probabilities of one side are equal, and differ by {difference:.3g} in the mean"
        yield Judged(ok(PEARSON, "undefined", why))
        return
    if math.isnan(pearson) or pearson < threshold:
        stored = first.facts.read_json(first.facts.journal.stage_dir(step_label(first.step)) / "fidelity.json")
        why = f"is below fidelity.threshold {threshold:g}: the loss is of another policy than the one that acted"
        mend = "mend it: fidelity.patience stops the run if it stays so"
        yield Judged(fatal(PEARSON, _digits(pearson), why, mend), tuple(fidelity_causes(stored)))
    else:
        why = f"at least {threshold:g}; probabilities differ by {difference:.3g} in the mean"
        yield Judged(ok(PEARSON, _digits(pearson), why))


def replay(first: FirstStep) -> Iterator[Judged]:
    """Whether the engine's choice of experts was replayed for all tokens, where it is at all."""
    for name in replay_metrics(first.facts):
        covered = first.value(name)
        if not math.isfinite(covered):
            continue
        if covered < COVERED:
            cause = LikelyCause(
                "the engine did not report its choice for some tokens", f"{1 - covered:.1%} of them have none",
                "the others are routed anew, and differ: read the engine's log",
            )  # fmt: skip
            yield Judged(warn(name, covered, "not every token's experts are replayed", "see its causes"), (cause,))
        else:
            yield Judged(ok(name, covered, "the engine's experts are replayed for all tokens"))


def rate(first: FirstStep) -> Iterator[Judged]:
    """Whether the optimizer moves at all."""
    value, wanted = first.value("actor/lr"), float(first.facts.setting("learner.lr", math.nan))
    if not math.isfinite(value):
        yield Judged(warn("actor/lr", "unknown", "the update tells no rate", "look at steps/step_000001/update.json"))
    elif value <= 0:
        warm = first.facts.setting("learner.lr_warmup_steps", 0)
        cause = LikelyCause("the schedule gives 0", f"learner.lr {wanted:g}, warm-up {warm}", "mend the schedule")
        why = "with it no step changes a weight"
        yield Judged(fatal("actor/lr", value, why, "mend it before the run goes on"), (cause,), stops=True)
    elif value > wanted * 1.001:
        cause = LikelyCause("another schedule than the configured one", f"learner.lr is {wanted:g}", "look at plugins")
        yield Judged(warn("actor/lr", value, f"is more than learner.lr {wanted:g}", "mend the schedule"), (cause,))
    else:
        yield Judged(ok("actor/lr", value, "not 0" if math.isnan(wanted) else f"of learner.lr {wanted:g}"))


def gradient(first: FirstStep) -> Iterator[Judged]:
    """Whether the gradient is finite, not 0, and not clipped to nothing."""
    norm, clip = first.metrics.get("actor/grad_norm"), float(first.facts.setting("learner.grad_clip", 1.0))
    skipped = first.metrics.get("actor/skipped_steps", 0.0)
    signal = first.metrics.get("batch/groups_with_signal", math.nan)
    if norm is None and not skipped:
        yield Judged(warn("actor/grad_norm", "unknown", "no update was made: the batch was empty", "see trials above"))
    elif norm is None or not math.isfinite(norm):
        cause = LikelyCause(
            "numbers overflow",
            f"{skipped:.0f} updates were skipped",
            "set learner.dtype: float32, lower learner.lr, and look at the largest advantages and weights",
        )
        why = "is not finite, and such updates are skipped"
        yield Judged(fatal("actor/grad_norm", "nan", why, "mend it: nothing is learned"), (cause,))
    elif norm == 0:
        flat = LikelyCause(
            "no group carries a signal", f"batch/groups_with_signal is {signal:g}", "see the reward above"
        )
        frozen = LikelyCause(
            "the weights have no gradient", f"{signal:g} groups carry a signal", "look at algorithm, masks and filter"
        )
        cause = frozen if signal > 0 else flat
        yield Judged(fatal("actor/grad_norm", norm, "nothing was learned", "see its cause"), (cause,))
    elif norm > CLIPPED_AWAY * clip:
        yield Judged(fatal("actor/grad_norm", norm, _clipped(norm, clip), "see its causes"), _large_causes(first))
    elif norm > CLIPPED * clip:
        yield Judged(warn("actor/grad_norm", norm, _clipped(norm, clip), "see its causes"), _large_causes(first))
    else:
        yield Judged(ok("actor/grad_norm", norm, f"finite, not 0, against learner.grad_clip {clip:g}"))


def _clipped(norm: float, clip: float) -> str:
    return f"is {norm / clip:.0f} times learner.grad_clip {clip:g}: only its direction is left"


def _large_causes(first: FirstStep) -> tuple[LikelyCause, ...]:
    agg = first.facts.setting("algorithm.loss_agg", "?")
    largest = max(abs(first.value("critic/advantages/max")), abs(first.value("critic/advantages/min")))
    return (
        LikelyCause("the loss is a sum, not a mean", f"algorithm.loss_agg is {agg}", "take one that divides by tokens"),
        LikelyCause("advantages are large", f"up to {largest:.3g}", "normalise them, or look at the reward's scale"),
    )


CHECKS: dict[str, Check] = {
    "trials": trials,
    "turns": turns,
    "lengths": lengths,
    "reward": reward,
    "agreement": agreement,
    "replay": replay,
    "rate": rate,
    "gradient": gradient,
}
"""In the order in which they are made and told."""


def worst(judged: list[Judged]) -> Level:
    """The worst level of a verdict's lines."""
    return max((j.finding.level for j in judged), key=[Level.OK, Level.WARN, Level.FATAL].index, default=Level.WARN)


def _calls_tools(facts: RunFacts) -> bool:
    """Whether the agent offers tools, so that a run of it without calls is ill."""
    return facts.setting("serving.tool_call_parser") is not None and facts.setting("scaffold.name") != "edit"


def _told(tools: ToolUse | None) -> str:
    if tools is None:
        return "the scaffold reads actions from text"
    return f"{tools.calls} calls and {tools.unreadable} unreadable ones in {tools.answers} answers"


def _digits(value: float) -> str:
    return f"{value:.4f}"
