"""Reads a run's `.env` file as text: assignments of plain values. Nothing in it is expanded, sourced or executed."""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dotenv.parser import parse_stream

from flows.config import ConfigError
from flows.configuration.layers import CHANGEME, Layer, Place

_ARRAY = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\+?=\(")
_NAME = re.compile(r"[A-Za-z_]\w*")
_SHELL = re.compile(r"\$[\w({]|`|<<<|&&|\|\||;\s*\w")

MODULES = "TEMPLATE_MODULES"
"""The array by which such a file asks for modules; here the four axes do."""


@dataclass(frozen=True)
class Given:
    """A value that the file gives, in the line where it does."""

    value: str
    line: int


def parse(text: str, source: str, folder: Path, name: str) -> Layer:
    """The layer `name` of a `.env` file.

    Args:
        source: How messages call the file.
        folder: Where the file is, which relative paths in it start from.

    Raises:
        ConfigError: a line is no plain assignment, a name is unknown, or a value cannot be translated; a line each.
    """
    from flows.configuration.dotenv_names import translate

    given = read_assignments(text, source)
    translation = translate(given, source, folder)
    places = {key: Place(source, line) for key, line in translation.lines.items()}
    notes = tuple(f"{source}: {note}" for note in translation.notes)
    return Layer(name, translation.values, places, notes)


def read_assignments(text: str, source: str) -> dict[str, Given]:
    """Names and values. An empty value counts as not given, as it always did in these files.

    Raises:
        ConfigError: something else than plain assignments, such as `$(date)`, or a name that is given twice.
    """
    given: dict[str, Given] = {}
    problems: list[str] = []
    for line, written, key, value in _bindings(_without_modules(text, source)):
        where = f"{source}:{line}"
        if key is None or value is None:
            problems.append(f"{where}: {written!r} is no assignment; write NAME=value")
        elif not _NAME.fullmatch(key):
            problems.append(f"{where}: {key!r} is no name; write NAME=value")
        elif _SHELL.search(value) and not _single_quoted(written):
            problems.append(
                f"{where}: {key}: {value!r} would need a shell, and this file is read, not executed; write the value "
                "out"
            )
        elif value == "":
            continue
        elif CHANGEME in value:
            problems.append(f"{where}: {key}: is still {value!r}; put your own value there, or take the line out")
        elif key in given:
            problems.append(f"{where}: {key}: is set in line {given[key].line} already; keep one of them")
        else:
            given[key] = Given(value, line)
    if problems:
        raise ConfigError("\n".join(problems))
    return given


def _bindings(text: str) -> Iterator[tuple[int, str, str | None, str | None]]:
    """Line, text, name and value of each statement; comments and empty lines are left out."""
    for binding in parse_stream(io.StringIO(text)):
        written = binding.original.string
        if binding.error or binding.key is not None:
            blank = len(written) - len(written.lstrip("\n"))
            yield binding.original.line + blank, written.strip(), binding.key, binding.value


def _single_quoted(written: str) -> bool:
    return written.partition("=")[2].lstrip().startswith("'")


def _without_modules(text: str, source: str) -> str:
    """`text` without the array of modules; its lines stay, empty, so that all others keep their numbers."""
    kept, inside = [], False
    for number, line in enumerate(text.splitlines(), start=1):
        match = None if inside else _ARRAY.match(line)
        if match is not None and match[1] != MODULES:
            raise ConfigError(f"{source}:{number}: {match[1]}: is an array; this file holds plain values only")
        inside = inside or match is not None
        kept.append("" if inside else line)
        if inside and ")" in line.partition("#")[0].partition("(")[2 if match else 0]:
            inside = False
    if inside:
        raise ConfigError(f"{source}: the array {MODULES} is never closed; add a line with )")
    return "\n".join(kept) + "\n"
