"""Reads the answers of a policy that works a terminal: JSON, in whatever state the policy leaves it.

An answer is an object {"analysis", "plan", "commands": [{"keystrokes", "duration"}], "task_complete"}. Nothing of an
answer with an error is typed; a warning tells what was mended or ignored.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

MAX_COMMANDS = 32
MAX_KEYSTROKES = 20_000
"""Characters of one answer's commands together."""

MAX_SECONDS = 60.0
"""The longest wait after one command; who needs more waits again."""

DEFAULT_SECONDS = 1.0

_MAX_STARTS = 64
_KEY_NAME = re.compile(
    r"(?:(?:C|M|S|C-M|C-S|M-S)-)?(?:Enter|Escape|Tab|BTab|BSpace|Space|Up|Down|Left|Right|Home|End|PageUp|PageDown|PgUp|PgDn"
    r"|PPage|NPage|IC|DC|Insert|Delete|F(?:1[0-2]|[1-9]))|(?:C|M|C-M)-[!-~]"
)


@dataclass(frozen=True)
class Command:
    """Text to type, or one key by tmux's name for it, and how many seconds to wait before looking."""

    keystrokes: str
    seconds: float

    @property
    def key(self) -> str | None:
        """The name of the key that this is, such as `C-c`; None for text."""
        return self.keystrokes if _KEY_NAME.fullmatch(self.keystrokes) else None


@dataclass(frozen=True)
class Reading:
    """What an answer says. With an `error`, which is worded for the policy, there are no commands and no end."""

    commands: tuple[Command, ...] = ()
    task_complete: bool = False
    error: str = ""
    warnings: tuple[str, ...] = ()


class _Unreadable(ValueError):
    """What is wrong with an answer."""


def read_answer(text: str) -> Reading:
    """The commands in the first JSON object of `text` that has any."""
    warnings: list[str] = []
    try:
        answer, around = _find_object(text)
        if around:
            warnings.append("text outside the JSON object is ignored")
        commands = _commands(answer, warnings)
        complete = _flag(answer.get("task_complete", False))
    except _Unreadable as error:
        return Reading(error=str(error), warnings=tuple(warnings))
    for name in ("analysis", "plan"):
        if not isinstance(answer.get(name), str):
            warnings.append(f'"{name}" should be a text')
    return Reading(commands, complete, warnings=tuple(warnings))


def _find_object(text: str) -> tuple[dict[str, Any], bool]:
    """The first object with commands, and whether there is other text around it."""
    decoder = json.JSONDecoder(strict=False)  # a policy breaks lines inside of texts
    complaint = ""  # about the first object, which the others may be parts of
    position = -1
    for _ in range(_MAX_STARTS):
        position = text.find("{", position + 1)
        if position < 0:
            break
        try:
            value, end = decoder.raw_decode(text, position)
        except RecursionError:
            raise _Unreadable("the JSON is nested too deeply") from None
        except ValueError as error:
            complaint = complaint or f"the JSON cannot be read: {_where(error)}"
            continue
        if isinstance(value, dict) and "commands" in value:
            return value, bool(text[:position].strip() or text[end:].strip())
        complaint = complaint or 'the JSON object has no "commands"'
        position = end - 1
    raise _Unreadable(complaint or "there is no JSON object in the answer")


def _where(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (line {error.lineno}, column {error.colno})"
    return "a number is too long"


def _commands(answer: dict[str, Any], warnings: list[str]) -> tuple[Command, ...]:
    values = answer["commands"]
    if not isinstance(values, list):
        raise _Unreadable('"commands" must be a list')
    if len(values) > MAX_COMMANDS:
        raise _Unreadable(f"there are {len(values)} commands; send at most {MAX_COMMANDS} at a time")
    commands = tuple(_command(number, value, warnings) for number, value in enumerate(values, 1))
    total = sum(len(command.keystrokes) for command in commands)
    if total > MAX_KEYSTROKES:
        raise _Unreadable(f"the commands have {total} keystrokes; send at most {MAX_KEYSTROKES} at a time")
    return commands


def _command(number: int, value: Any, warnings: list[str]) -> Command:
    if not isinstance(value, dict) or not isinstance(value.get("keystrokes"), str):
        raise _Unreadable(f'command {number} must be an object whose "keystrokes" are a text')
    try:
        value["keystrokes"].encode()
    except UnicodeEncodeError:
        raise _Unreadable(f"the keystrokes of command {number} hold half of a surrogate pair") from None
    return Command(value["keystrokes"], _seconds(number, value.get("duration", DEFAULT_SECONDS), warnings))


def _seconds(number: int, value: Any, warnings: list[str]) -> float:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if math.isnan(seconds):
        warnings.append(f"the duration of command {number} is no number; {DEFAULT_SECONDS:g} s were used")
        return DEFAULT_SECONDS
    if not 0 <= seconds <= MAX_SECONDS:
        warnings.append(f"the duration of command {number} was brought to between 0 and {MAX_SECONDS:g} s")
    return min(max(seconds, 0.0), MAX_SECONDS)


def _flag(value: Any) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower())
    if not isinstance(value, bool):
        raise _Unreadable('"task_complete" must be true or false')
    return value
