"""What a check says: how bad it is, of which field and value, why, and what mends it."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FATAL = "FATAL"

    @property
    def mark(self) -> str:
        return {"OK": "✓", "WARN": "!", "FATAL": "✗"}[self.value]


@dataclass(frozen=True)
class Finding:
    """One line of a check. `value` is what was looked at, as text; `mend` is empty for what is well."""

    level: Level
    field: str
    value: str
    why: str
    mend: str = ""
    check: str = ""

    @property
    def message(self) -> str:
        """The line without its mark."""
        value = f" is {self.value}" if self.value else ""
        subject = f"{self.field}{value}: " if self.field else ""
        return f"{subject}{self.why}" + (f"; {self.mend}" if self.mend else "")

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"level": str(self.level)}


def ok(field: str, value: object, why: str) -> Finding:
    """All is well, for this reason."""
    return Finding(Level.OK, field, _text(value), why)


def warn(field: str, value: object, why: str, mend: str) -> Finding:
    """The run may go on, and its author should know."""
    return Finding(Level.WARN, field, _text(value), why, mend)


def fatal(field: str, value: object, why: str, mend: str) -> Finding:
    """The run must not start: it would fail, or measure something else than it says."""
    return Finding(Level.FATAL, field, _text(value), why, mend)


def unset(field: str, value: object, why: str, mend: str) -> Finding:
    """Nobody chose a value that matters. A check never calls its own default good."""
    return Finding(Level.WARN, field, f"unset, so {_text(value)}", why, mend)


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
