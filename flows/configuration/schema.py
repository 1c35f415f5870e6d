"""Which settings there are: read off the model of a run's configuration, so that no list of them is kept by hand."""

import difflib
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from flows.config import RunConfig

AXES = ("backend", "scaffold", "mode", "engine")
"""Of each a run may choose one profile, under `profiles`; a later one goes before an earlier one."""

PROFILES = "profiles"


@dataclass(frozen=True)
class Setting:
    """One setting. `optional_section`: it is None, or a section whose own settings follow it."""

    key: str
    field: FieldInfo
    optional_section: bool = False

    @property
    def description(self) -> str:
        return self.field.description or ""

    @property
    def required(self) -> bool:
        return self.field.is_required()

    @property
    def default(self) -> Any:
        """What holds if no layer says anything; None for what is required."""
        value = self.field.get_default(call_default_factory=True)
        return None if value is PydanticUndefined else value

    @property
    def type_name(self) -> str:
        return _type_name(self.field.annotation)


@cache
def settings() -> dict[str, Setting]:
    """All settings by dotted key, in the order of the model."""
    return {setting.key: setting for setting in _walk(RunConfig, "")}


@cache
def sections() -> dict[str, str]:
    """All sections by dotted key, with what they are about."""
    return dict(_sections(RunConfig, ""))


@cache
def axis_keys() -> tuple[str, ...]:
    """The keys that choose profiles."""
    return tuple(f"{PROFILES}.{axis}" for axis in AXES)


def known_keys() -> list[str]:
    """Every key that a layer may set."""
    return [*settings(), *axis_keys()]


def suggest(key: str) -> str:
    """A sentence that helps whoever wrote the unknown `key`: what is near to it, else what stands beside it."""
    known = known_keys()
    leaf = key.rpartition(".")[2]
    by_leaf = [name for name in known if name.rpartition(".")[2] == leaf]
    near = by_leaf or difflib.get_close_matches(key, sorted({*known, *sections()}), n=3, cutoff=0.7)
    if not near:
        leaves = {name.rpartition(".")[2]: name for name in reversed(known)}
        near = [leaves[name] for name in difflib.get_close_matches(leaf, leaves, n=3, cutoff=0.7)]
    hint = f"the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}; " if near else ""
    section = _nearest_section(key)
    return f"{hint}known {'here' if not section else f'in {section}'} are {', '.join(children(section))}"


def children(section: str) -> list[str]:
    """Names that stand directly in a section; "" for the top."""
    prefix = f"{section}." if section else ""
    names = (key.removeprefix(prefix) for key in [*known_keys(), *sections()] if key.startswith(prefix))
    return sorted({name.partition(".")[0] for name in names})


def section_model(annotation: Any) -> type[BaseModel] | None:
    """The model behind an annotation such as `Section` or `Section | None`; None if it is a plain value."""
    candidates = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
    return models[0] if models else None


def _nearest_section(key: str) -> str:
    section = key.rpartition(".")[0]
    while section and section not in sections() and section != PROFILES:
        section = section.rpartition(".")[0]
    return section


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        inner = section_model(field.annotation)
        if inner is None:
            yield Setting(prefix + name, field)
            continue
        if get_origin(field.annotation) is not None:
            yield Setting(prefix + name, field, optional_section=True)
        yield from _walk(inner, f"{prefix}{name}.")


def _sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        inner = section_model(field.annotation)
        if inner is not None:
            yield prefix + name, field.description or ""
            yield from _sections(inner, f"{prefix}{name}.")


def _type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(part) for part in get_args(annotation))
    if annotation is type(None):
        return "null"
    if origin is not None and str(origin) == "typing.Literal":
        return " or ".join(map(repr, get_args(annotation)))
    if origin is not None and hasattr(origin, "__name__"):
        inner = ", ".join("…" if part is Ellipsis else _type_name(part) for part in get_args(annotation))
        return f"{_type_name(origin)} of {inner}" if inner and origin.__name__ != "Annotated" else inner
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    plain = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "Path": "path"}
    name = getattr(annotation, "__name__", str(annotation))
    return plain.get(name, name)


def is_set(config: BaseModel, key: str) -> bool:
    """Whether any layer gave the setting at the dotted `key` a value, even one that equals the default."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, BaseModel) or part not in value.model_fields_set:
            return False
        value = getattr(value, part)
    return True


def value_at(config: BaseModel, key: str) -> Any:
    """The value of the dotted `key`; None below an optional section that is None."""
    value: Any = config
    for part in key.split("."):
        if value is None:
            return None
        value = getattr(value, part)
    return value


def under(keys: Iterable[str], section: str) -> list[str]:
    """Those of `keys` that are `section` itself or lie in it."""
    return [key for key in keys if key == section or key.startswith(f"{section}.")]
