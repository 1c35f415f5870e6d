"""How the agents of a step used their tools, from the conversations of some of its trials."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.trial_table import read_object

SAMPLED = 24


@dataclass(frozen=True)
class ToolUse:
    """Counts over `trials` conversations: the policy's answers, calls that were read, answers with one that was not."""

    trials: int = 0
    answers: int = 0
    calls: int = 0
    unreadable: int = 0


def count_tool_use(folder: Path, trials: pa.Table) -> ToolUse:
    """Counts over trials of `folder` that are spread over the step; what cannot be read is passed over."""
    names = [name for name in trials["session_id"].to_pylist() if name and "/" not in name and not name.startswith(".")]
    chosen = names[:: max(len(names) // SAMPLED, 1)][:SAMPLED]
    use = ToolUse()
    for name in chosen:
        try:
            trajectory = read_object(f"{folder}/{name}/trajectory.json")
        except (OSError, ValueError, RecursionError):
            continue
        if trajectory is not None:
            use = _add(use, trajectory)
    return use


def _add(use: ToolUse, trajectory: Mapping[str, Any]) -> ToolUse:
    answers = calls = unreadable = 0
    for turn in _turns(trajectory):
        answer = turn.get("answer")
        found = answer.get("tool_calls") if isinstance(answer, dict) else None
        answers += 1
        calls += len(found) if isinstance(found, list) else 0
        unreadable += bool(turn.get("unreadable_tool_call"))
    return ToolUse(use.trials + 1, use.answers + answers, use.calls + calls, use.unreadable + unreadable)


def _turns(trajectory: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    segments = trajectory.get("segments")
    for segment in segments if isinstance(segments, list) else []:
        turns = segment.get("turns") if isinstance(segment, dict) else None
        yield from (turn for turn in (turns if isinstance(turns, list) else []) if isinstance(turn, dict))
