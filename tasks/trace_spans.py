"""From trajectory.json to the spans of a trace, in the form in which MLflow reads them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_NANO = 10**9
_LEAST_SECONDS = 0.001
"""Length of a span whose end is not known."""


def trial_spans(
    trace_id: str, trajectory: Mapping[str, Any], result: Mapping[str, Any], max_chars: int
) -> list[dict[str, Any]]:
    """The spans of a trial, the root first: one for each answer, and one for each tool call, which lasts until the
    policy was asked again.

    `trace_id` is `tr-` and 32 hex digits. Texts are cut after `max_chars` characters. Token ids are left out: they are
    in trajectory.json.
    """
    spans = _Spans(trace_id, max_chars)
    started = trajectory["started_at"]
    asked = {"task": trajectory["task_id"], "step": trajectory["step"], "scaffold": trajectory["scaffold"]}
    failed = trajectory["outcome"] == "infra_error"
    root = spans.add("trial", "AGENT", None, started, _end(trajectory), asked, result, failed=failed)
    for segment in trajectory["segments"]:
        turns = segment["turns"]
        prompt = segment["inherited_tokens"]
        for number, turn in enumerate(turns):
            following = turns[number + 1] if number + 1 < len(turns) else None
            prompt += len(turn["given_ids"])
            _add_turn(spans, root, segment, number, turn, prompt, following)
            prompt += len(turn["sampled_ids"])
    return spans.written


def digest(text: str, digits: int) -> str:
    """The first hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _add_turn(
    spans: "_Spans",
    root: str,
    segment: Mapping[str, Any],
    number: int,
    turn: Mapping[str, Any],
    prompt: int,
    following: Mapping[str, Any] | None,
) -> None:
    answered = turn["started_at"] + turn["generate_seconds"]
    sampled = len(turn["sampled_ids"])
    attributes = {
        "segment": segment["index"],
        "thread": segment["thread"],
        "trained": segment["trained"],
        "finish_reason": turn["finish_reason"],
        "weight_versions": turn["weight_versions"],
        "gap_seconds": turn["gap_seconds"],
        "mlflow.chat.tokenUsage": {
            "input_tokens": prompt, "output_tokens": sampled, "total_tokens": prompt + sampled
        },
    }  # fmt: skip
    name = f"{segment['thread']} turn {number + 1}"
    inputs, outputs = {"messages": turn["messages"]}, {"messages": [turn["answer"]]}
    spans.add(name, "CHAT_MODEL", root, turn["started_at"], answered, inputs, outputs, attributes)
    results = {
        message.get("tool_call_id"): message["content"]
        for message in (following["messages"] if following else [])
        if message["role"] == "tool"
    }
    until = following["started_at"] if following else answered
    for call in turn["answer"].get("tool_calls", []):
        output = {"content": results.get(call["id"])}
        spans.add(call["name"] or "tool", "TOOL", root, answered, until, {"arguments": call["arguments"]}, output)


def _end(trajectory: Mapping[str, Any]) -> float:
    """When the trial ended: its own stages took so long, and no answer came later."""
    timings = trajectory["timings"]
    stages = ("sandbox_start", "agent", "patch", "sandbox_stop")
    told = trajectory["started_at"] + sum(timings.get(stage, 0.0) for stage in stages)
    turns = [turn for segment in trajectory["segments"] for turn in segment["turns"]]
    return float(max([told, *(turn["started_at"] + turn["generate_seconds"] for turn in turns)]))


class _Spans:
    def __init__(self, trace_id: str, max_chars: int) -> None:
        self.written: list[dict[str, Any]] = []
        self._trace_id = trace_id
        self._max_chars = max_chars

    def add(
        self,
        name: str,
        kind: str,
        parent: str | None,
        started: float,
        ended: float,
        inputs: Any,
        outputs: Any,
        attributes: Mapping[str, Any] | None = None,
        *,
        failed: bool = False,
    ) -> str:
        """Write a span. Returns its id."""
        span_id = digest(f"{self._trace_id}/{len(self.written)}", 16)
        told = {
            "mlflow.traceRequestId": self._trace_id,
            "mlflow.spanType": kind,
            "mlflow.spanInputs": self._cut(inputs),
            "mlflow.spanOutputs": self._cut(outputs),
            **(attributes or {}),
        }
        self.written.append(
            {
                "trace_id": self._trace_id,
                "span_id": span_id,
                "parent_span_id": parent,
                "name": name,
                "start_time_unix_nano": int(started * _NANO),
                "end_time_unix_nano": int(max(ended, started + _LEAST_SECONDS) * _NANO),
                "status": {"code": "ERROR" if failed else "OK", "message": ""},
                "attributes": {key: json.dumps(value) for key, value in told.items()},
                "events": [],
            }
        )
        return span_id

    def _cut(self, value: Any) -> Any:
        """The value with long texts cut short."""
        if isinstance(value, Mapping):
            return {key: self._cut(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._cut(item) for item in value]
        if isinstance(value, str) and len(value) > self._max_chars:
            return f"{value[: self._max_chars]} … {len(value) - self._max_chars} more characters"
        return value
