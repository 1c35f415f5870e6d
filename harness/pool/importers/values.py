"""Reading one row of a public data set, in each of the ways in which its columns are spelled.

Keys differ in case, lists of tests come as lists, JSON or the text of a Python list, and a missing value may be None,
an empty string or "nan".
"""

import ast
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any


class ImportProblem(ValueError):
    """Why a row or folder cannot be a task."""


class Row:
    """One row; `origin` says where it stands. Column names are compared without regard to case."""

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self.origin = origin
        self.values = dict(values)
        self._by_name: dict[str, list[Any]] = {}
        for key, value in self.values.items():
            if not _is_missing(value):
                self._by_name.setdefault(key.lower(), []).append(value)

    @property
    def label(self) -> str:
        """What to call the row when it is rejected."""
        found = self.values.get("instance_id") or self._first("instance_id") or self._first("id")
        return str(found)[:200] if found else "?"

    @property
    def digest(self) -> str:
        """Changes when any value does."""
        text = json.dumps(self.values, sort_keys=True, default=_plain)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def has(self, *names: str) -> bool:
        """Whether any of the columns holds something."""
        return any(name.lower() in self._by_name for name in names)

    def raw(self, *names: str) -> Any:
        """The value of the first of the columns that holds something; None if none does.

        Raises:
            ImportProblem: two spellings of one name say different things.
        """
        for name in names:
            values = self._by_name.get(name.lower(), [])
            if any(value != values[0] for value in values[1:]):
                raise ImportProblem(f"column {name} is there in two spellings with different values; keep one")
            if values:
                return values[0]
        return None

    def text(self, *names: str, default: str | None = None) -> str:
        """The value as text.

        Raises:
            ImportProblem: no column holds any, and there is no default; or it is no text.
        """
        value = self.raw(*names)
        if value is None:
            if default is None:
                raise ImportProblem(f"no {names[0]}: it has none of the columns {', '.join(names)}, or they are empty")
            return default
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str | int | float):
            raise ImportProblem(f"{names[0]} is a {type(value).__name__}, not text")
        return storable(str(value), names[0])

    def tests(self, *names: str) -> list[str]:
        """Test ids, each once, in their order; an empty list if no column holds any."""
        value = self.raw(*names)
        return [] if value is None else parse_list(value, names[0])

    def table(self, *names: str) -> dict[str, Any]:
        """A struct, or the JSON or Python text of one; empty if no column holds any."""
        value = self.raw(*names)
        if value is None:
            return {}
        parsed = _parse_text(value, names[0]) if isinstance(value, str) else value
        if not isinstance(parsed, Mapping):
            raise ImportProblem(f"{names[0]} is a {type(parsed).__name__}, not a table")
        return dict(parsed)

    def _first(self, name: str) -> Any:
        return next(iter(self._by_name.get(name, [])), None)


def storable(text: str, name: str) -> str:
    """`text` itself, if a file can hold it.

    Raises:
        ImportProblem: it has half of a pair of surrogates, as JSON can write it.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ImportProblem(f"{name} holds a character that is none, at {error.start}") from None
    return text


def parse_list(value: Any, name: str) -> list[str]:
    """A list of texts from a list, JSON, or the text of a Python list; each entry once, in order.

    Raises:
        ImportProblem: it is none of these.
    """
    for _ in range(2):  # a list as JSON, put into JSON once more
        if isinstance(value, str):
            value = [] if not value.strip() else _parse_text(value, name)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ImportProblem(f"{name} is neither a list nor the JSON or Python text of one: {str(value)[:80]!r}")
    items = list(value)
    wrong = [item for item in items if not isinstance(item, str) or not item.strip()]
    if wrong:
        raise ImportProblem(f"{name} holds {wrong[0]!r}, which is no test's id")
    return list(dict.fromkeys(storable(item, name) for item in items))


def _parse_text(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ImportProblem(f"{name} is neither JSON nor a Python literal: {text[:80]!r}") from None


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return isinstance(value, str) and value.strip().lower() in ("", "nan", "none", "null")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
