"""Configuration files: YAML, TOML, `.env`, and the config.json of a run. They are read, and never executed."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from flows.config import ConfigError
from flows.configuration import dotenv_file
from flows.configuration.layers import Layer, flatten

FORMATS = (".yaml", ".yml", ".toml", ".env", ".json")


def read_file(path: Path, name: str, shown: str | None = None, *, may_be_empty: bool = False) -> Layer:
    """The layer `name` that the file at `path` holds; messages call it `shown`, its path if that is None.

    Raises:
        ConfigError: there is no such file, it is not what its ending says, or it sets what does not exist.
    """
    text = _read_text(path)
    if path.suffix == ".env" or path.name == ".env":
        return dotenv_file.parse(text, str(path), path.parent, name)
    if path.suffix in (".yaml", ".yml"):
        values, lines = _yaml(text, path, may_be_empty)
    elif path.suffix == ".toml":
        values, lines = _toml(text, path), {}
    elif path.suffix == ".json":
        values, lines = _json(text, path), {}
    else:
        raise ConfigError(f"{path}: a configuration ends in {', '.join(FORMATS)}; rename the file")
    flat, places = flatten(values, shown or str(path), lines)
    return Layer(name, flat, places)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        kind = path.suffix.removeprefix(".").upper()
        raise ConfigError(f"{path}: not {kind}: {error}") from error


def _yaml(text: str, path: Path, may_be_empty: bool) -> tuple[dict[str, Any], dict[str, int]]:
    """Values, and the line of each dotted key. A key that is written twice is refused: the last would silently win."""
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    lines: dict[str, int] = {}
    for key, line in _key_lines(node, ""):
        if key in lines:
            raise ConfigError(f"{path}:{line}: {key}: is set in line {lines[key]} already; keep one of them")
        lines[key] = line
    return _table({} if values is None and may_be_empty else values, path), lines


def _key_lines(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value != "<<":
            yield f"{prefix}{key.value}", key.start_mark.line + 1
            yield from _key_lines(value, f"{prefix}{key.value}.")


def _toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _json(text: str, path: Path) -> dict[str, Any]:
    """A run's config.json, or plain values."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    stored = values.get("config") if isinstance(values, dict) and "identity" in values else values
    return _table(stored, path)


def _table(values: Any, path: Path) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected `key: value` lines, found {type(values).__name__}")
    if not_text := [key for key in values if not isinstance(key, str)]:
        raise ConfigError(f"{path}: {not_text[0]!r} is no name of a setting; quote it, or correct it")
    return values
