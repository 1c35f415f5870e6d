"""What is known of one setting, or of all: value, source, meaning, and every other way to set it."""

from collections.abc import Mapping
from typing import Any

import yaml

from flows.config import ConfigError
from flows.configuration import schema
from flows.configuration.dotenv_names import names_of
from flows.configuration.redaction import HIDDEN, Redactor, is_secret
from flows.configuration.resolve import Resolved, plain, with_defaults
from flows.configuration.words import variable_of


def table(resolved: Resolved, redactor: Redactor, *, only_set: bool = False) -> list[dict[str, Any]]:
    """A row a setting: key, value, layer, place; secrets taken out."""
    rows = []
    for key, value in with_defaults(resolved).items():
        origin = resolved.origin(key)
        if only_set and key not in resolved.origins:
            continue
        shown = redactor.value(plain(value))
        rows.append({"key": key, "value": shown, "layer": origin.layer, "set_by": redactor.text(str(origin))})
    return rows


def explain(resolved: Resolved, key: str, redactor: Redactor) -> list[tuple[str, str]]:
    """Lines of (what, text) about a setting, or about the settings of a section.

    Raises:
        ConfigError: there is no such key.
    """
    if key in schema.settings():
        return _explain_setting(resolved, schema.settings()[key], redactor)
    if key in schema.axis_keys():
        return _explain_axis(resolved, key)
    if key in schema.sections():
        inner = [name for name in schema.under(schema.settings(), key) if name != key]
        about = [("section", f"{key}: {schema.sections()[key]}")]
        return about + [(name, schema.settings()[name].description) for name in inner]
    raise ConfigError(f"{key}: unknown key; {schema.suggest(key)}")


def as_text(value: Any) -> str:
    """A value on one line, as YAML."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).removesuffix("...\n").strip()
    )


def _explain_setting(resolved: Resolved, setting: schema.Setting, redactor: Redactor) -> list[tuple[str, str]]:
    key = setting.key
    shown = as_text(redactor.value(plain(resolved.value(key))))
    lines = [
        ("setting", key),
        ("value", HIDDEN if is_secret(key) and shown != "null" and setting.type_name == "text" else shown),
        ("set by", redactor.text(str(resolved.origin(key)))),
        ("meaning", setting.description),
        ("type", setting.type_name),
        ("default", "none: it must be set" if setting.required else as_text(plain(setting.default))),
    ]
    lines += [("overrides", text) for text in _overridden(resolved, key, redactor)]
    lines += [("variable", variable_of(key)), ("command line", f"--set {key}=…")]
    names = names_of(key)
    return lines + ([("in .env files", ", ".join(names))] if names else [])


def _explain_axis(resolved: Resolved, key: str) -> list[tuple[str, str]]:
    from flows.configuration.profiles import available

    axis = key.rpartition(".")[2]
    lines = [("setting", key), ("value", as_text(resolved.value(key))), ("set by", str(resolved.origin(key)))]
    lines.append(("meaning", f"profile of the {axis}: settings that go before the defaults, and after all else"))
    lines.append(("known", ", ".join(available(axis))))
    return lines + [("overrides", text) for text in _overridden(resolved, key, Redactor({}))]


def _overridden(resolved: Resolved, key: str, redactor: Redactor) -> list[str]:
    """What lower layers said of the key, the highest of them first."""
    lower = list(resolved.origins.get(key, ()))[:-1]
    return [
        f"{as_text(redactor.value(plain(origin.value)))} from {redactor.text(str(origin))}" for origin in lower[::-1]
    ]


def differences(first: Resolved, second: Resolved, redactor: Redactor) -> list[dict[str, Any]]:
    """A row for each setting whose values differ, with both values and who gave them."""
    left, right = with_defaults(first), with_defaults(second)
    keys = [*left, *(key for key in right if key not in left)]
    return [
        {"key": key, "first": _side(first, left, key, redactor), "second": _side(second, right, key, redactor)}
        for key in keys
        if left.get(key, _ABSENT) != right.get(key, _ABSENT)
    ]


_ABSENT = object()


def _side(resolved: Resolved, values: Mapping[str, Any], key: str, redactor: Redactor) -> dict[str, Any]:
    if key not in values:
        return {"value": None, "layer": "absent", "set_by": "absent"}
    origin = resolved.origin(key)
    return {"value": redactor.value(plain(values[key])), "layer": origin.layer, "set_by": redactor.text(str(origin))}
