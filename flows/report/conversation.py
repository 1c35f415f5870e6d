"""A trial in a report: what was said, what was changed, what the tests said. All of it is text of unknown intent."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.report.figures import TRIAL_STAGES
from flows.report.run_data import TrialRow
from tasks.trial_table import read_object

_MAX_MESSAGE, _MAX_TRIAL, _MAX_DIFF, _MAX_LOG = 8_000, 30_000, 10_000, 3_000
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True)
class Message:
    """Who said what. `note` tells what an answer took."""

    role: str
    text: str
    note: str = ""


@dataclass
class Conversation:
    """A trial to be shown in full, as far as it fits. `link` is its trajectory.json, relative to the journal."""

    anchor: str
    trial: TrialRow
    stages: list[tuple[str, float]]
    link: str | None = None
    messages: list[Message] = field(default_factory=list)
    diff: str = ""
    log: str = ""
    problem: str = ""


def read_conversation(root: Path, trial: TrialRow, anchor: str) -> Conversation:
    """What the trial's files in the journal at `root` say; what they do not is in `problem`."""
    shown = Conversation(anchor, trial, _stages(trial))
    if not _PLAIN_NAME.fullmatch(trial.session_id):
        shown.problem = "its session id is not one that testgrad gives: its files were not read"
        return shown
    place = f"trials/{trial.label}/{trial.session_id}"
    folder = root / place
    try:
        trajectory = read_object(f"{folder}/trajectory.json")
        shown.diff = shorten(_plain_text(folder / "patch.diff"), _MAX_DIFF)
        verdict = read_object(f"{folder}/verdict.json") or {}
        shown.log = str(verdict.get("log") or "")[-_MAX_LOG:]
        if trajectory is None:
            shown.problem = "its trajectory.json is gone"
        else:
            shown.link = quote(f"{place}/trajectory.json")
            shown.messages = _within(_MAX_TRIAL, _messages(trajectory))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        shown.problem = f"its files cannot be read ({type(error).__name__}: {error})"
    return shown


def shorten(text: str, limit: int) -> str:
    """Beginning and end of a text that is too long."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _stages(trial: TrialRow) -> list[tuple[str, float]]:
    seconds = {name: trial.row.get(name) or 0.0 for name in TRIAL_STAGES}
    seconds["agent"] = max(seconds["agent"] - seconds["generate"], 0.0)
    return [(meaning, seconds[name]) for name, meaning in TRIAL_STAGES.items() if seconds[name]]


def _messages(trajectory: Mapping[str, Any]) -> Iterator[Message]:
    """The messages of all segments; of a journal from before there were segments, the transcript."""
    segments = trajectory.get("segments")
    if not segments:
        yield from (_message(message) for message in trajectory.get("messages", []))
        return
    for segment in segments:
        if len(segments) > 1:
            yield Message("segment", f"{segment['index']}: {'trained' if segment['trained'] else 'not trained'}")
        for number, turn in enumerate(segment["turns"], 1):
            yield from (_message(message) for message in turn["messages"])
            tokens, seconds = len(turn["sampled_ids"]), float(turn["generate_seconds"])
            yield _message(turn["answer"], f"turn {number}, {tokens} tokens, {seconds:.1f} s")


def _message(message: Mapping[str, Any], note: str = "") -> Message:
    content = message.get("content") or ""
    parts = [str(message.get("reasoning") or ""), content if isinstance(content, str) else json.dumps(content)]
    parts += [f"{call['name']} {call['arguments']}" for call in message.get("tool_calls") or []]
    return Message(str(message.get("role", "")), shorten("\n".join(filter(None, parts)), _MAX_MESSAGE), note)


def _within(budget: int, messages: Iterator[Message]) -> list[Message]:
    """As many messages as fit, and a word on the rest."""
    shown: list[Message] = []
    for message in messages:
        budget -= len(message.text)
        if budget < 0:
            left_out = 1 + sum(1 for _ in messages)
            return [*shown, Message("left out", f"{left_out} more messages are in trajectory.json")]
        shown.append(message)
    return shown


def _plain_text(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return ""
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        return file.read(4 * _MAX_DIFF)
