"""What shows in how the policy acts: agents that stop using tools, answers that become all alike."""

import statistics

from flows.diagnosis.causes import LikelyCause
from flows.diagnosis.facts import RunFacts
from flows.diagnosis.signatures import Signature, signature
from flows.diagnosis.state import RunState
from flows.preflight.findings import Level

_ROW, _FIRST, _SHOWN = 2, 3, 6
FEW_TURNS, SHARE_OF_EARLIER, MANY_TURNS = 1.5, 0.25, 3.0
COLLAPSED, LEAST_STEPS = 0.1, 10


@signature("no-tool-collapse")
def no_tool_collapse(facts: RunFacts, state: RunState) -> Signature | None:
    """Trials that had several turns in this run's first steps now end after one or two, in two steps in a row."""
    turns = facts.series("num_turns/mean")
    if len(turns) < _FIRST + _ROW:
        return None
    before = statistics.median(value for _, value in turns[:_FIRST])
    limit = max(FEW_TURNS, SHARE_OF_EARLIER * before)
    if before < MANY_TURNS or any(value > limit for _, value in turns[-_ROW:]):
        return None
    unreadable = facts.series("rollout/unreadable_tool_calls", _SHOWN)
    ended = facts.series("rollout/no_tool_end", _SHOWN)
    causes = []
    if unreadable and unreadable[-1][1] > 0:
        causes.append(
            LikelyCause(
                "tool calls cannot be read any more: their form has drifted from what the parser knows",
                f"{unreadable[-1][1]:.0f} unreadable tool calls at step {unreadable[-1][0]}",
                "read such a trial; a penalty by KL (algorithm.kl) or a lower learner.lr keeps the form",
            )
        )
    causes.append(
        LikelyCause(
            "the policy has learned to answer instead of acting",
            f"{before:.1f} turns at first, {turns[-1][1]:.1f} now",
            "go back to a checkpoint from before; lower learner.lr, and see what reward short trials earned",
        )
    )
    evidence = {"num_turns/mean": turns[-_SHOWN:], "response_length/mean": facts.series("response_length/mean", _SHOWN),
                "rollout/unreadable_tool_calls": unreadable, "rollout/no_tool_end": ended}  # fmt: skip
    claim = f"trials end after {turns[-1][1]:.1f} turns, where they had {before:.1f}"
    return Signature("no-tool-collapse", Level.FATAL, claim, evidence, causes)


@signature("entropy-collapse")
def entropy_collapse(facts: RunFacts, state: RunState) -> Signature | None:
    """The entropy of the policy is a tenth of what it was in this run's first steps, in two steps in a row."""
    entropy = facts.series("actor/entropy")
    if len(entropy) < LEAST_STEPS:
        return None
    before = statistics.median(value for _, value in entropy[:_FIRST])
    if before <= 0 or any(value > COLLAPSED * before for _, value in entropy[-_ROW:]):
        return None
    cause = LikelyCause(
        "the policy has become nearly certain: its attempts at a task are all alike, and groups lose their signal",
        f"{before:.3g} at first, {entropy[-1][1]:.3g} now",
        "raise rollout.temperature, clip higher (algorithm.clip_high), or set algorithm.entropy_coeff",
    )
    evidence = {"actor/entropy": entropy[-_SHOWN:],
                "batch/groups_with_signal": facts.series("batch/groups_with_signal", _SHOWN)}  # fmt: skip
    claim = f"the policy's entropy fell from {before:.3g} to {entropy[-1][1]:.3g}"
    return Signature("entropy-collapse", Level.WARN, claim, evidence, [cause])
