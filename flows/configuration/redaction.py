"""Secrets: taken from the environment only, refused in every file, and never shown."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from flows.config import ConfigError
from flows.configuration.layers import Layer, Place

HIDDEN = "***"

_SECRET = re.compile(
    r"API_?KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|ACCESS_?KEY|PRIVATE_?KEY|AUTHORIZATION|(^|[_.-])TOKEN$",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")
_SHORTEST = 6
"""Characters below which a variable's value is no secret: `1`, or `true`."""


def is_secret(name: str) -> bool:
    """Whether a variable or an entry of this name holds a secret."""
    return _SECRET.search(name) is not None


class Redactor:
    """Takes secrets out of what is shown: values of secret variables, passwords in URLs, entries by their names."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        held = {value for name, value in environment.items() if is_secret(name) and len(value) >= _SHORTEST}
        self._held = sorted(held, key=len, reverse=True)

    def text(self, text: str) -> str:
        """`text` without secrets."""
        for value in self._held:
            text = text.replace(value, HIDDEN)
        return _IN_URL.sub(rf"\1:{HIDDEN}@", text)

    def value(self, value: Any) -> Any:
        """Any JSON value without secrets, those of free tables by their names."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {k: HIDDEN if is_secret(str(k)) and isinstance(v, str) else self.value(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value


def refuse_secrets(layers: Iterable[Layer]) -> None:
    """Raise ConfigError if a free table of any layer has an entry that is a secret by its name.

    What is configured ends in the journal, in MLflow and before the eyes of agents; from none of them a secret returns.
    """
    problems = [
        f"{layer.places.get(key, Place(layer.name))}: {key}.{name}: secrets are not configured, since a run's "
        "configuration is stored and its trials are hostile; take it out, and export it in the shell of the process "
        "that needs it"
        for layer in layers
        for key, value in layer.values.items()
        for name in _names(value)
        if is_secret(name)
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _names(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _names(inner)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _names(item)
