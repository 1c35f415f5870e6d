"""Readers of the values in a `.env` file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Reader = Callable[[str], Any]


class Untranslatable(ValueError):
    """A value that has no counterpart; the message says why and what to do."""


def text(value: str) -> str:
    return value


def integer(value: str) -> int:
    try:
        return int(float(value)) if float(value).is_integer() else int(value)
    except ValueError as error:
        raise Untranslatable(f"{value!r} is no whole number") from error


def number(value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise Untranslatable(f"{value!r} is no number") from error


def switch(value: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if value.lower() not in words:
        raise Untranslatable(f"{value!r} is neither True nor False")
    return words[value.lower()]


def one_of(**words: str) -> Reader:
    def read(value: str) -> str:
        if value not in words:
            raise Untranslatable(f"{value!r} has no counterpart here; there are {', '.join(sorted(words))}")
        return words[value]

    return read


def nothing(value: str) -> bool:
    return value.lower() in ("null", "none")


def from_folder(path: str, folder: Path) -> str:
    """A path that begins with `./` or `../` is meant from the file; others as they are."""
    return str((folder / path).resolve()) if path.startswith(("./", "../")) else path
