"""A trajectory in the terminal: who said what, and what each answer took."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

_MAX_EVENT_CHARS = 300


def show_trajectory(console: Console, trajectory: Mapping[str, Any]) -> None:
    """All segments one after the other, as the policy saw them, then what the scaffold said besides, and noted."""
    for segment in trajectory["segments"]:
        _show_segment(console, segment, alone=len(trajectory["segments"]) == 1)
    turns = [turn for segment in trajectory["segments"] for turn in segment["turns"]]
    shown = {_key(message) for turn in turns for message in (*turn["messages"], turn["answer"])}
    for message in trajectory["messages"]:
        if _key(message) not in shown:  # a request that was refused, say
            _show_message(console, message)
    if trajectory["events"]:
        console.print(Panel(_events(trajectory["events"]), title="events", title_align="left"))


def _show_segment(console: Console, segment: Mapping[str, Any], alone: bool) -> None:
    """What was said, and of each answer how many tokens and seconds it took."""
    if not alone:
        console.rule(Text(_structure(segment)), align="left")
    prompt = segment["inherited_tokens"]
    for number, turn in enumerate(segment["turns"], 1):
        for message in turn["messages"]:
            _show_message(console, message)
        prompt += len(turn["given_ids"])
        sampled = len(turn["sampled_ids"])
        told = [f"turn {number}", f"{prompt} + {sampled} tokens", f"{turn['generate_seconds']:.1f} s"]
        if turn["gap_seconds"] is not None:
            told.insert(1, f"{turn['gap_seconds']:.1f} s after the last")
        if turn["finish_reason"] != "stop":
            told.append(f"ended by {turn['finish_reason']}")
        if turn["unreadable_tool_call"]:
            told.append("a tool call that cannot be read")
        _show_message(console, turn["answer"], ", ".join(told))
        prompt += sampled


def _key(message: Mapping[str, Any]) -> tuple[str, str]:
    return message["role"], message["content"].strip()


def _structure(segment: Mapping[str, Any]) -> str:
    told = [f"segment {segment['index']}", segment["thread"], f"{segment['sampled_tokens']} sampled tokens"]
    if segment["parent"] is not None:
        told.append(f"goes on from turn {segment['parent_turn'] + 1} of segment {segment['parent']}")
    return ", ".join([*told, "trained" if segment["trained"] else "not trained"])


def _show_message(console: Console, message: Mapping[str, Any], subtitle: str | None = None) -> None:
    # text of the policy and of its tools: never markup
    text = Text()
    if message.get("reasoning"):
        text.append(f"{message['reasoning']}\n\n", style="dim italic")
    text.append(message["content"])
    for call in message.get("tool_calls", []):
        text.append(f"{chr(10) if text else ''}{call['name']} {call['arguments']}", style="cyan")
    console.print(Panel(text, title=message["role"], title_align="left", subtitle=subtitle, subtitle_align="right"))


def _events(events: Sequence[Mapping[str, Any]]) -> Text:
    text = Text()
    for event in events:
        details = {name: value for name, value in event.items() if name not in ("turn", "event")}
        line = ", ".join(f"{name} {json.dumps(value)}" for name, value in details.items())
        text.append(f"{chr(10) if text else ''}{event['event']}", style="bold")
        text.append(f" {line}"[:_MAX_EVENT_CHARS])
    return text
