"""Layers: flat tables of values by dotted key, the later ones of which go before the earlier ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flows.config import ConfigError
from flows.configuration import schema

CHANGEME = "CHANGEME"
"""What a template puts where only the user can know; a configuration that still has it is refused."""


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file and its line, a variable, a word of the command line."""

    text: str
    line: int | None = None

    def __str__(self) -> str:
        return self.text if self.line is None else f"{self.text}:{self.line}"


@dataclass(frozen=True)
class Layer:
    """What one source sets. Keys are dotted; lists and free tables are values, and are never merged."""

    name: str
    values: Mapping[str, Any]
    places: Mapping[str, Place] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What was read and has no effect here, and why."""


@dataclass(frozen=True)
class Origin:
    """One value of a key, and who gave it."""

    layer: str
    place: Place
    value: Any

    def __str__(self) -> str:
        return str(self.place) if self.place.text == self.layer else f"{self.layer} ({self.place})"


@dataclass(frozen=True)
class Merged:
    """What holds, and for each key all that was said, the last of which holds."""

    values: dict[str, Any]
    origins: dict[str, list[Origin]]


def merge(layers: Iterable[Layer]) -> Merged:
    """Later layers over earlier ones, key by key."""
    values: dict[str, Any] = {}
    origins: dict[str, list[Origin]] = {}
    for layer in layers:
        for key, value in layer.values.items():
            _make_room(values, key, value)
            values[key] = value
            place = layer.places.get(key, Place(layer.name))
            origins.setdefault(key, []).append(Origin(layer.name, place, value))
    return Merged(values, origins)


def _make_room(values: dict[str, Any], key: str, value: Any) -> None:
    """A section set to null takes its settings away; a setting of a section that was null brings it back."""
    if value is None and key in schema.sections():
        for inner in schema.under(list(values), key):
            del values[inner]
    parent = key.rpartition(".")[0]
    while parent:
        if parent in values and values[parent] is None:
            del values[parent]
        parent = parent.rpartition(".")[0]


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables of a flat one."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        target = nested
        for section in sections:
            inner = target.setdefault(section, {})
            target = inner
        if isinstance(value, dict) and not value and isinstance(target.get(name), dict):
            continue  # an empty section among whose settings some are set
        target[name] = dict(value) if isinstance(value, dict) else value
    return nested


def flatten(
    values: Mapping[str, Any], source: str, lines: Mapping[str, int] | None = None
) -> tuple[dict[str, Any], dict[str, Place]]:
    """A flat table of a nested one, and where its values were written.

    A section with nothing below it sets nothing.

    Raises:
        ConfigError: a key is unknown, or a value stands where a section is; each with its place.
    """
    flat: dict[str, Any] = {}
    problems: list[str] = []
    _flatten(values, "", flat, problems, source, lines or {})
    if problems:
        raise ConfigError("\n".join(problems))
    return flat, {key: Place(source, (lines or {}).get(key)) for key in flat}


def _flatten(
    values: Mapping[str, Any],
    prefix: str,
    flat: dict[str, Any],
    problems: list[str],
    source: str,
    lines: Mapping[str, int],
) -> None:
    for name, value in values.items():
        key = f"{prefix}{name}"
        place = Place(source, lines.get(key))
        setting = schema.settings().get(key)
        is_section = key in schema.sections() or key == schema.PROFILES
        if is_section and isinstance(value, dict):
            if setting is not None:
                flat[key] = {}
            _flatten(value, f"{key}.", flat, problems, source, lines)
        elif setting is not None or key in schema.axis_keys():
            flat[key] = value
        elif is_section and value is None:
            continue
        elif is_section:
            problems.append(f"{place}: {key}: is a section, and {value!r} a value; write {key}.<setting>")
        else:
            problems.append(f"{place}: {key}: unknown key; {schema.suggest(key)}")


def require_changed(origins: Mapping[str, Sequence[Origin]]) -> None:
    """Raise ConfigError, a line each, if the value that holds for a key is still a template's."""
    problems = []
    for key, given in origins.items():
        if CHANGEME in str(given[-1].value):
            setting = schema.settings().get(key)
            wanted = f" ({setting.description})" if setting is not None and setting.description else ""
            problems.append(f"{given[-1].place}: {key}: is still {given[-1].value!r}{wanted}; put your own value there")
    if problems:
        raise ConfigError("\n".join(problems))
