"""Values that are given as text: on the command line, and in environment variables."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from flows.config import ConfigError
from flows.configuration import schema
from flows.configuration.layers import Layer, Place

PREFIX = "TESTGRAD_"
COMMAND_LINE = "command line"
ENVIRONMENT = "environment"


def variable_of(key: str) -> str:
    """The environment variable that sets the dotted `key`: TESTGRAD_LEARNER__LR for learner.lr."""
    return PREFIX + key.upper().replace(".", "__")


def from_overrides(overrides: Iterable[str]) -> Layer:
    """The layer of `section.key=value` words, whose values are YAML.

    Raises:
        ConfigError: a word has no `=`, its key is unknown, or its value is not YAML.
    """
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(f"override {override!r}: expected section.key=value")
        _add(values, key.strip(), _parse(text, f"override {override!r}"), f"override {override!r}")
        for name in values.keys() - places.keys():
            places[name] = Place(f"--set {key}")
    return Layer(COMMAND_LINE, values, places)


def from_environment(environment: Mapping[str, str] = os.environ) -> Layer:
    """The layer of variables such as TESTGRAD_LEARNER__LR.

    Other variables of that prefix have other uses. One that begins like a setting and is none is refused: it was meant.

    Raises:
        ConfigError: a variable names no setting, or its value is not YAML.
    """
    keys = {variable_of(key): key for key in schema.known_keys()}
    tops = sorted({key.partition(".")[0] for key in [*schema.sections(), schema.PROFILES]}, key=len, reverse=True)
    meant = re.compile(f"{PREFIX}({'|'.join(tops)})_", re.IGNORECASE)
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for variable, text in sorted(environment.items()):
        if variable in keys:
            values[keys[variable]] = _parse(text, variable)
            places[keys[variable]] = Place(variable)
        elif meant.match(variable):
            guess = variable.removeprefix(PREFIX).lower().replace("__", ".")
            raise ConfigError(
                f"{variable}: names no setting; {_suggest_variable(guess)} (a section and its setting are joined by "
                "two underscores)"
            )
    return Layer(ENVIRONMENT, values, places)


def _suggest_variable(guess: str) -> str:
    joined = {key.replace(".", "_"): key for key in schema.known_keys()}
    same = joined.get(guess.replace(".", "_"))
    return f"{variable_of(same)} does" if same is not None else f"read as {guess}: {schema.suggest(guess)}"


def _add(values: dict[str, Any], key: str, value: Any, source: str) -> None:
    """Enter one value; a section may be given as a whole, as {a: 1}."""
    from flows.configuration.layers import flatten, nest

    if key in schema.sections() and isinstance(value, dict):
        flat, _ = flatten(nest({key: value}), source)
        values.update(flat)
        return
    if key in schema.known_keys():
        values[key] = value
        return
    parent = key.rpartition(".")[0]
    while parent:
        if parent in schema.settings() and parent not in schema.sections():
            _add_entry(values, parent, key.removeprefix(f"{parent}."), value, source)
            return
        parent = parent.rpartition(".")[0]
    if key in schema.sections():
        raise ConfigError(f"{source}: {key} is a section, not a value; write {key}.<setting>=…")
    raise ConfigError(f"{source}: {key}: unknown key; {schema.suggest(key)}")


def _add_entry(values: dict[str, Any], key: str, name: str, value: Any, source: str) -> None:
    if str(schema.settings()[key].type_name).startswith("dict"):
        raise ConfigError(f"{source}: {key} is given as a whole; write {key}={{{name}: {value}}}")
    raise ConfigError(f"{source}: {key} is a value, not a section")


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: the value is not YAML: {error}") from error
