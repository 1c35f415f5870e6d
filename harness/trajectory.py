"""trajectory.json: what was said, sampled and awaited in a trial, for people and for tools.

It holds all captured segments, also those that are not trained. The ids of a turn are in two lists: `given_ids` are
what its request added (loss mask 0), `sampled_ids` the answer (loss mask 1), with the log-prob and, as pairs of version
and count, the weight version of each. A segment that forked from another begins with `inherited_tokens` ids of its
parent, which are not written again; `tokens_of` puts the sequences together.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from harness.proxy.segment import Segment, Turn
from harness.trial import TrialResult
from trainer.rollout import NO_VERSION

FORMAT = "testgrad-trajectory-1"
_LOGPROB_DIGITS = 6


class TrajectoryError(ValueError):
    """A trajectory.json that is none, or of another format."""


@dataclass(frozen=True)
class SegmentTokens:
    """A segment's sequence; all lists have one entry a token, as those of `trainer.rollout.Rollout` do.

    Log-probs are rounded to six digits.
    """

    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    weight_versions: list[int]


def trajectory_of(result: TrialResult) -> dict[str, Any]:
    """What trajectory.json says of a trial, as JSON values."""
    spec = result.spec
    trained = {rollout.segment for rollout in result.rollouts}
    return {
        "format": FORMAT,
        "session_id": spec.session_id,
        "group_id": spec.group_id,
        "task_id": spec.task_id,
        "step": spec.step,
        "attempt": spec.attempt,
        "scaffold": result.scaffold,
        "started_at": round(result.started_at, 3),
        "sampling": dataclasses.asdict(spec.sampling),
        "outcome": str(result.outcome),
        "error": result.error,
        **result.transcript.to_json(),
        "segments": [_segment(segment, result.segments, segment.index in trained) for segment in result.segments],
        "timings": {stage: round(seconds, 4) for stage, seconds in result.timings.items()},
        "counters": dict(result.counters),
    }


def tokens_of(trajectory: Mapping[str, Any], index: int) -> SegmentTokens:
    """The sequence of segment `index`, what it inherited included.

    Raises:
        TrajectoryError: there is no such segment, or the trajectory has another format.
    """
    if trajectory.get("format") != FORMAT:
        raise TrajectoryError(f"the trajectory has format {trajectory.get('format')!r}; this reads {FORMAT!r}")
    segments = {segment["index"]: segment for segment in trajectory["segments"]}
    if index not in segments:
        raise TrajectoryError(f"{trajectory['session_id']} has no segment {index}; it has {sorted(segments)}")
    segment = segments[index]
    tokens = SegmentTokens([], [], [], [])
    if segment["inherited_tokens"]:
        inherited = tokens_of(trajectory, segment["parent"]).token_ids[: segment["inherited_tokens"]]
        _extend(tokens, inherited, 0, [math.nan] * len(inherited), [NO_VERSION] * len(inherited))
    for turn in segment["turns"]:
        given, sampled = turn["given_ids"], turn["sampled_ids"]
        _extend(tokens, given, 0, [math.nan] * len(given), [NO_VERSION] * len(given))
        versions = [version for version, count in turn["weight_versions"] for _ in range(count)]
        _extend(tokens, sampled, 1, turn["logprobs"], versions)
    return tokens


def encode(value: Any) -> str:
    """Indented JSON in which lists of numbers take one line each. What is no JSON number, NaN say, becomes null."""
    return _encode(value, "") + "\n"


def _segment(segment: Segment, segments: Sequence[Segment], trained: bool) -> dict[str, Any]:
    inherited = _inherited(segment, segments)
    starts = [inherited, *(turn.answer_end for turn in segment.turns)]
    logprobs, versions = segment.logprobs, segment.weight_versions
    return {
        "index": segment.index,
        "thread": segment.thread,
        "parent": segment.parent,
        "parent_turn": segment.parent_turn,
        "trained": trained,
        "prompt_length": segment.prompt_length,
        "tokens": len(segment.token_ids),
        "sampled_tokens": sum(turn.answer_end - turn.answer_start for turn in segment.turns),
        "inherited_tokens": inherited,
        "turns": [
            _turn(turn)
            | {
                "given_ids": list(segment.token_ids[start : turn.answer_start]),
                "sampled_ids": list(segment.token_ids[turn.answer_start : turn.answer_end]),
                "logprobs": [round(p, _LOGPROB_DIGITS) for p in logprobs[turn.answer_start : turn.answer_end]],
                "weight_versions": _runs(versions[turn.answer_start : turn.answer_end]),
            }
            for start, turn in zip(starts, segment.turns, strict=False)
        ],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "messages": [dict(message) for message in turn.messages_added],
        "answer": dict(turn.answer),
        "finish_reason": turn.finish_reason,
        "unreadable_tool_call": turn.unreadable_tool_call,
        "tools": turn.tools_digest,
        "started_at": round(turn.started_at, 6),
        "generate_seconds": round(turn.generate_seconds, 4),
        "gap_seconds": None if turn.gap_seconds is None else round(turn.gap_seconds, 4),
    }


def _runs(versions: Iterable[int]) -> list[list[int]]:
    """Each run of equal versions as a pair of version and count."""
    return [[version, sum(1 for _ in run)] for version, run in groupby(versions)]


def _inherited(segment: Segment, segments: Sequence[Segment]) -> int:
    """How many ids a segment shares with the one that it forked from, up to the end of the turn where it did.

    0 where other tools gave it another head: what it shares then begins behind that.
    """
    if segment.parent is None or segment.parent_turn is None:
        return 0
    parent = segments[segment.parent]
    length = parent.turns[segment.parent_turn].answer_end
    return length if segment.token_ids[:length] == parent.token_ids[:length] else 0


def _extend(
    tokens: SegmentTokens, ids: Iterable[int], mask: int, logprobs: Iterable[float], versions: Iterable[int]
) -> None:
    before = len(tokens.token_ids)
    tokens.token_ids.extend(ids)
    tokens.loss_mask.extend([mask] * (len(tokens.token_ids) - before))
    tokens.logprobs.extend(logprobs)
    tokens.weight_versions.extend(versions)


def _encode(value: Any, indent: str) -> str:
    deeper = indent + " "
    if isinstance(value, Mapping) and value:
        lines = [f"{deeper}{json.dumps(str(name))}: {_encode(item, deeper)}" for name, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and value:
        if all(_takes_no_line(item) for item in value):
            return _numbers(value)
        return "[\n" + ",\n".join(deeper + _encode(item, deeper) for item in value) + f"\n{indent}]"
    return _scalar(value)


def _numbers(value: Sequence[Any]) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return "[" + ",".join(_encode(item, "") for item in value) + "]"


def _takes_no_line(item: Any) -> bool:
    return isinstance(item, int | float) or (
        isinstance(item, list | tuple) and all(isinstance(number, int | float) for number in item)
    )


def _scalar(value: Any) -> str:
    return "null" if isinstance(value, float) and not math.isfinite(value) else json.dumps(value)
