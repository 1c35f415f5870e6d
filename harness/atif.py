"""A trajectory in Harbor's Agent Trajectory Interchange Format, ATIF v1.8, for its viewers and tools.

The main conversation becomes one document. Where it was compacted or its history edited, what follows is a document of
its own, to which `continued_trajectory_ref` leads; steps that it repeats are marked as copied context, which is not to
be trained again. Sub-agents' conversations are embedded, and referred to from the step that they began after.

Reference: Harbor's RFC 0001, https://harborframework.com/docs/trajectory-format.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from harness.trajectory import tokens_of

SCHEMA_VERSION = "ATIF-v1.8"
MAIN_FILE = "trajectory.json"


class AtifError(ValueError):
    """A trajectory that ATIF has no form for."""


def to_atif(
    trajectory: Mapping[str, Any],
    *,
    agent_version: str,
    model_name: str | None = None,
    reward: float | None = None,
    prompt_ids: bool = False,
) -> dict[str, dict[str, Any]]:
    """ATIF documents by file name: `trajectory.json`, then one for each continuation.

    Args:
        agent_version: What ATIF demands of an agent besides its name; "unknown" if it is.
        reward: What the trial earned, told in the first document's final metrics.
        prompt_ids: Whether each step repeats the ids of its whole prompt: the size then grows with the square of the
            conversation.

    Raises:
        AtifError: the policy was never asked, and an ATIF trajectory has at least one step.
    """
    segments = [segment for segment in trajectory["segments"] if segment["turns"]]
    if not segments:
        raise AtifError(f"session {trajectory['session_id']}: the policy never answered, so there are no steps")
    agent = {"name": trajectory["scaffold"], "version": agent_version}
    if model_name is not None:
        agent["model_name"] = model_name
    documents = [_Document(trajectory, segment, agent, prompt_ids) for segment in segments]
    main = [document for document in documents if document.segment["thread"] == "main"]
    for document in documents:
        if document not in main:
            _embed(document, main)
    names = [MAIN_FILE, *(f"trajectory.cont-{number}.json" for number in range(1, len(main)))]
    for document, following in zip(main, names[1:], strict=False):
        document.content["continued_trajectory_ref"] = following
    first = main[0].content
    first["extra"] |= {key: trajectory[key] for key in ("task_id", "group_id", "step", "outcome", "error", "timings")}
    if reward is not None:
        first["final_metrics"]["extra"] = {"reward": reward}
    return {name: document.content for name, document in zip(names, main, strict=True)}


class _Document:
    """The ATIF trajectory of one segment."""

    def __init__(
        self, trajectory: Mapping[str, Any], segment: Mapping[str, Any], agent: Mapping[str, Any], prompt_ids: bool
    ) -> None:
        self.segment = segment
        self.steps: list[dict[str, Any]] = []
        self.times: list[float | None] = []
        for turn in _inherited_turns(trajectory, segment):
            self._add_turn(turn, copied=True)
        self._prompt = segment["inherited_tokens"]
        self._ids = tokens_of(trajectory, segment["index"]).token_ids if prompt_ids else None
        for turn in segment["turns"]:
            self._add_turn(turn, copied=False)
        metrics = [step["metrics"] for step in self.steps if "metrics" in step]
        self.content: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "session_id": trajectory["session_id"],
            "trajectory_id": f"{trajectory['session_id']}-segment-{segment['index']}",
            "agent": dict(agent),
            "steps": self.steps,
            "final_metrics": {
                "total_prompt_tokens": sum(step["prompt_tokens"] for step in metrics),
                "total_completion_tokens": sum(step["completion_tokens"] for step in metrics),
                "total_steps": len(self.steps),
            },
            "extra": {name: segment[name] for name in ("thread", "parent", "parent_turn", "trained")},
        }

    def _add_turn(self, turn: Mapping[str, Any], copied: bool) -> None:
        for message in turn["messages"]:
            self._add_message(message, copied)
        step = self._agent_step(turn["answer"], turn["started_at"])
        if copied:
            step["is_copied_context"] = True
        else:
            step |= {"llm_call_count": 1, "metrics": self._metrics(turn)}
            step["extra"] = {"finish_reason": turn["finish_reason"], "generate_seconds": turn["generate_seconds"]}

    def _add_message(self, message: Mapping[str, Any], copied: bool) -> None:
        """A message of the request: a tool's result belongs to the step that called for it."""
        role = message["role"]
        if role == "tool":
            self._observe(message)
            return
        if role == "assistant":
            # what the client claims that was answered before, which this segment did not sample
            self._agent_step(message, None)["is_copied_context"] = True
            return
        step = self._append("system" if role == "system" else "user", message["content"], None)
        if copied:
            step["is_copied_context"] = True

    def _observe(self, message: Mapping[str, Any]) -> None:
        agents = [step for step in self.steps if step["source"] == "agent"]
        call = message.get("tool_call_id")
        for step in reversed(agents):
            if call in {known["tool_call_id"] for known in step.get("tool_calls", [])}:
                result = {"source_call_id": call, "content": message["content"]}
                step.setdefault("observation", {"results": []})["results"].append(result)
                return
        if agents:
            result = {"content": message["content"], "extra": {"unknown_call_id": call}}
            agents[-1].setdefault("observation", {"results": []})["results"].append(result)
        else:
            self._append("user", message["content"], None)["extra"] = {"role": "tool", "unknown_call_id": call}

    def _agent_step(self, answer: Mapping[str, Any], started_at: float | None) -> dict[str, Any]:
        step = self._append("agent", answer["content"], started_at)
        if answer.get("reasoning"):
            step["reasoning_content"] = answer["reasoning"]
        if answer.get("tool_calls"):
            step["tool_calls"] = [_tool_call(call) for call in answer["tool_calls"]]
        return step

    def _append(self, source: str, message: str, time: float | None) -> dict[str, Any]:
        step: dict[str, Any] = {"step_id": len(self.steps) + 1, "source": source, "message": message}
        if time is not None:
            step["timestamp"] = datetime.fromtimestamp(time, UTC).isoformat()
        self.steps.append(step)
        self.times.append(time)
        return step

    def _metrics(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        sampled = turn["sampled_ids"]
        self._prompt += len(turn["given_ids"])
        metrics = {
            "prompt_tokens": self._prompt,
            "completion_tokens": len(sampled),
            "completion_token_ids": sampled,
            "logprobs": turn["logprobs"],
            "extra": {"weight_versions": turn["weight_versions"]},
        }
        if self._ids is not None:
            metrics["prompt_token_ids"] = self._ids[: self._prompt]
        self._prompt += len(sampled)
        return metrics


def _inherited_turns(trajectory: Mapping[str, Any], segment: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The turns of its ancestors that a forked segment begins with."""
    if segment["parent"] is None:
        return
    parent = next(known for known in trajectory["segments"] if known["index"] == segment["parent"])
    yield from _inherited_turns(trajectory, parent)
    yield from parent["turns"][: segment["parent_turn"] + 1]


def _embed(document: _Document, main: Sequence[_Document]) -> None:
    """Put a sub-agent's document into the main one that was at work when it began, and refer to it there."""
    began = document.segment["turns"][0]["started_at"]
    place, parent = main[0], None
    for candidate in (earlier for earlier in main if earlier.segment["index"] < document.segment["index"]):
        for step, time in zip(candidate.steps, candidate.times, strict=True):
            if time is not None and time <= began and "metrics" in step:
                place, parent = candidate, step
    place.content.setdefault("subagent_trajectories", []).append(document.content)
    if parent is not None:
        results = parent.setdefault("observation", {"results": []})["results"]
        if not results:
            results.append({})
        reference = {"trajectory_id": document.content["trajectory_id"]}
        results[0].setdefault("subagent_trajectory_ref", []).append(reference)


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """ATIF wants arguments as an object; the policy may have written anything."""
    step_call = {"tool_call_id": call["id"], "function_name": call["name"]}
    try:
        arguments = json.loads(call["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        return step_call | {"arguments": arguments}
    return step_call | {"arguments": {}, "extra": {"unreadable_arguments": call["arguments"]}}
