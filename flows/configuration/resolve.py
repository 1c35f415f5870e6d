"""From layers to a configuration: defaults < profiles < site < run config < environment < command line."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from flows.config import ConfigError, RunConfig
from flows.configuration import schema
from flows.configuration.files import read_file
from flows.configuration.layers import Layer, Origin, Place, merge, nest, require_changed
from flows.configuration.profiles import chosen_profiles
from flows.configuration.redaction import refuse_secrets
from flows.configuration.site import find_site, read_site
from flows.configuration.words import from_environment, from_overrides

DEFAULT = "default"


@dataclass(frozen=True)
class Resolved:
    """A configuration and where its values came from. `origins` has only what some layer set."""

    config: RunConfig
    layers: Sequence[Layer]
    origins: Mapping[str, Sequence[Origin]]

    def origin(self, key: str) -> Origin:
        """Who gave the value of `key` that holds."""
        given = self.origins.get(key)
        setting = schema.settings().get(key)
        return given[-1] if given else Origin(DEFAULT, Place(DEFAULT), setting.default if setting else None)

    def value(self, key: str) -> Any:
        """The value of a setting, or the profile that an axis has; None if there is none."""
        if key in schema.axis_keys():
            return self.origin(key).value
        return schema.value_at(self.config, key)

    @property
    def notes(self) -> list[str]:
        """What was read and has no effect, and why."""
        return [note for layer in self.layers for note in layer.notes]


def load_run(
    path: Path | None,
    overrides: Iterable[str] = (),
    *,
    site: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Resolved:
    """The configuration of a run from its file and everything around it.

    Args:
        path: The run config: YAML, TOML, `.env`, or a run's config.json. None for the other layers only.
        overrides: `section.key=value` words of the command line.
        site: The site file; TESTGRAD_SITE or the user's own if not given.

    Raises:
        ConfigError: it cannot run; each line names place, field, value and mend.
    """
    return resolve(load_layers(path, overrides, site=site, environment=environment), path)


def load_layers(
    path: Path | None,
    overrides: Iterable[str] = (),
    *,
    site: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> list[Layer]:
    """All layers, lowest first, the chosen profiles among them.

    Raises:
        ConfigError: a layer cannot be read.
    """
    site_path = find_site(site, environment)
    if path is not None and path.suffix == ".json":
        above: list[Layer] = [read_file(path, "run")]  # it is what a run was, whatever the site is now
    else:
        above = [read_site(site_path)] if site_path is not None else []
        above += [read_file(path, "run")] if path is not None else []
    above += [from_environment(environment), from_overrides(overrides)]
    return [*chosen_profiles(merge(above)), *above]


def resolve(layers: Sequence[Layer], path: Path | None = None) -> Resolved:
    """The configuration that the layers add up to.

    Raises:
        ConfigError: a template's value is left, a secret is configured, or the values cannot run.
    """
    refuse_secrets(layers)
    merged = merge(layers)
    require_changed(merged.origins)
    values = {key: value for key, value in merged.values.items() if key not in schema.axis_keys()}
    try:
        config = RunConfig.model_validate(nest(values))
    except ValidationError as error:
        problems = (_explain(problem, merged.origins, str(path or "configuration")) for problem in error.errors())
        raise ConfigError("\n".join(problems)) from error
    return Resolved(config, layers, merged.origins)


def _explain(problem: Any, origins: Mapping[str, Sequence[Origin]], source: str) -> str:
    """One line: where the value was written, its field, what is wrong, and the value."""
    field = ".".join(str(part) for part in problem["loc"])
    place = _place(field, origins) or Place(source)
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{place}: {field}: required, and missing"
    if problem["type"] == "value_error":
        return f"{place}: {field}: {message}" if field else f"{place}: {message}"
    return f"{place}: {field}: {message} (got {problem['input']!r})"


def _place(field: str, origins: Mapping[str, Sequence[Origin]]) -> Place | None:
    """Where a field was written, or the nearest setting around it; None for what several settings bring about."""
    while field:
        if field in origins:
            return origins[field][-1].place
        field = field.rpartition(".")[0]
    return None


def with_defaults(resolved: Resolved) -> dict[str, Any]:
    """Every setting by dotted key, the profiles first; nothing below an optional section that is None."""
    keys = [key for key in schema.axis_keys() if resolved.origins.get(key)]
    table: dict[str, Any] = {key: resolved.value(key) for key in keys}
    for key, setting in schema.settings().items():
        parent = key.rpartition(".")[0]
        if parent in schema.settings() and schema.value_at(resolved.config, parent) is None:
            continue
        value = schema.value_at(resolved.config, key)
        table[key] = plain(value) if not setting.optional_section else (None if value is None else {})
    return table


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
